// Products: C = C + A B, or A B + bias, with an activation behind it; each element of A and C is at a row and a column stride.
//
//     B is read in panels of two registers' width, block by block of its rows; A is broadcast, number by number:
//
//         k ─>             panel
//        ┌─────┐        ┌──┬──┐        each tile of C, up to ROWS x 2 registers, stays in registers while k runs
//    i   │ A   │     k  │  │  │        through a block; so 28 of 32 registers add up, two load B, one broadcasts A
//        └─────┘        └──┴──┘
//
// A panel is copied to adjacent memory if several tiles read it, or if its columns are not adjacent (a transposed weight). So are
// the rows of A if they are not adjacent (a transposed gradient) and several panels read them.
// Rows of A that a second-level cache cannot hold go through all panels in several blocks.
// The order in which products are added up depends on k alone: not on the number of threads, nor on rows beside.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif
#include <algorithm>
#include <cstdlib>
#include "steady.h"

namespace ampnet {

#if defined(__AVX512F__)
constexpr int ROWS = 14;
#else
constexpr int ROWS = 6;
#endif
constexpr int64_t DEPTH = 256;
constexpr int64_t CACHED = 512 << 10;  // bytes of A that go through all panels
constexpr int64_t WORTH_THREADS = 2'000'000;  // multiply-adds for each thread, at least

template <class T> struct Product {
    int64_t m, n, k;
    const T *a; int64_t ra, ca;
    const T *b; int64_t rb, cb;
    T *c; int64_t rc;
    bool add;
    const T *bias;
    int64_t activation;
    T alpha;
    const T* panels = nullptr;       // of the whole of B, where they are kept
    int64_t across = 0, column = 0;  // the width of these, in numbers; the first column that is ours
};

// Memory of one thread, which grows: for a panel (0), for rows of A (1).
template <class T, int KIND> inline T* own_memory(int64_t count) {
    static thread_local T* memory = nullptr;
    static thread_local int64_t size = 0;
    if (count > size) {
        std::free(memory);
        size = (count + LANES<T> - 1) / LANES<T> * LANES<T>;
        memory = (T*)std::aligned_alloc(64, size * sizeof(T));
    }
    return memory;
}

template <class T, int R, int W>
void tile(const Product<T>& p, int64_t i, int64_t j, int64_t k, int64_t depth, const T* b, int64_t rb, int width, bool copied,
          bool first, bool last) {
    constexpr int L = LANES<T>;
    V<T> sum[R][W];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) sum[r][w] = V<T>{};
    const T* a[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) a[r] = p.a + (i + r) * p.ra + k * p.ca;
    if (depth > 32)  // by the end of the tile, its place in C is in the cache
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int w = 0; w < W; w++) __builtin_prefetch(p.c + (i + r) * p.rc + j + w * L, 1);
    const int tail = width - (W - 1) * L;
    const bool whole = tail == L || copied;  // a copied panel is filled up with zeros
    const int64_t ca = p.ca;
    if (whole) {
#pragma GCC unroll 2
        for (int64_t s = 0; s < depth; s++, b += rb) {
            V<T> column[W];
#pragma GCC unroll 2
            for (int w = 0; w < W; w++) column[w] = load(b + w * L);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                V<T> x = all<T>(a[r][s * ca]);
#pragma GCC unroll 2
                for (int w = 0; w < W; w++) sum[r][w] += x * column[w];
            }
        }
    } else {
        for (int64_t s = 0; s < depth; s++, b += rb) {
            V<T> column[W];
#pragma GCC unroll 2
            for (int w = 0; w < W; w++) column[w] = w == W - 1 ? load(b + w * L, tail) : load(b + w * L);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                V<T> x = all<T>(a[r][s * ca]);
#pragma GCC unroll 2
                for (int w = 0; w < W; w++) sum[r][w] += x * column[w];
            }
        }
    }
#pragma GCC unroll 2
    for (int w = 0; w < W; w++) {
        const int n = w == W - 1 ? tail : L;
        V<T> bias = first && p.bias ? load(p.bias + j + w * L, n) : V<T>{};
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            T* c = p.c + (i + r) * p.rc + j + w * L;
            V<T> value = sum[r][w] * p.alpha + bias;
            if (p.add || !first) value += load(c, n);
            if (last && p.activation) value = activated<T>(value, p.activation);
            store(c, value, n);
        }
    }
}

template <class T, int W, int R>
inline void tiles(const Product<T>& p, int rows, int64_t i, int64_t j, int64_t k, int64_t depth, const T* b, int64_t rb, int width,
                  bool copied, bool first, bool last) {
    if (rows == R) return tile<T, R, W>(p, i, j, k, depth, b, rb, width, copied, first, last);
    if constexpr (R > 1) tiles<T, W, R - 1>(p, rows, i, j, k, depth, b, rb, width, copied, first, last);
}

// A square of `high` rows and `wide` columns, turned: perfect shuffles of all rows with those half a square below.
template <class T> void turn(const T* from, int64_t rf, int high, int wide, T* to, int64_t rt) {
    constexpr int L = LANES<T>;
    V<T> row[L], next[L];
    I<T> low, above;
#pragma GCC unroll 16
    for (int i = 0; i < L; i++) low[i] = i / 2 + i % 2 * L, above[i] = low[i] + L / 2;
#pragma GCC unroll 16
    for (int i = 0; i < L; i++) row[i] = i < high ? load(from + i * rf, wide) : V<T>{};
#pragma GCC unroll 4
    for (int round = 1; round < L; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < L / 2; i++) {
            next[2 * i] = __builtin_shuffle(row[i], row[i + L / 2], low);
            next[2 * i + 1] = __builtin_shuffle(row[i], row[i + L / 2], above);
        }
#pragma GCC unroll 16
        for (int i = 0; i < L; i++) row[i] = next[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; i++)
        if (i < wide) store(to + i * rt, row[i]);
}

// Copy a panel, filled up with zeros to full registers.
template <class T>
void copy_panel(const Product<T>& p, int64_t k, int64_t j, int64_t depth, int width, T* to) {
    constexpr int64_t L = LANES<T>, across = 2 * L;
    if (p.cb == 1) {
        const T* from = p.b + k * p.rb + j;
        const int left = std::min<int>(width, L), right = width - left;
        for (int64_t s = 0; s < depth; s++, from += p.rb, to += across) {
            store(to, load(from, left));
            store(to + L, right > 0 ? load(from + L, right) : V<T>{});
        }
        return;
    }
    if (p.rb != 1) {
        for (int64_t s = 0; s < depth; s++)
            for (int64_t w = 0; w < across; w++) to[s * across + w] = w < width ? p.b[(k + s) * p.rb + (j + w) * p.cb] : T(0);
        return;
    }
    for (int64_t half = 0; half < across; half += L)
        for (int64_t s = 0; s < depth; s += L) {
            const int wide = std::clamp<int>(width - half, 0, L), deep = std::min<int>(L, depth - s);
            turn(p.b + k + s + (j + half) * p.cb, p.cb, wide, deep, to + s * across + half, across);
        }
}

// The rows of a tile of A, whose neighbours in a column are adjacent: column by column.
template <class T> inline void copy_rows(const T* a, int64_t ca, int64_t rows, int64_t depth, T* to) {
    constexpr int L = LANES<T>;
    for (int64_t s = 0; s < depth; s++, a += ca, to += rows)
        for (int64_t r = 0; r < rows; r += L) {
            const int n = (int)std::min<int64_t>(L, rows - r);
            store(to + r, load(a + r, n), n);
        }
}

inline int64_t depth_of_blocks(int64_t k) {
    const int64_t blocks = (k + DEPTH - 1) / DEPTH;
    return (k + blocks - 1) / blocks;
}

template <class T> void multiply_alone(const Product<T>& p) {
    constexpr int L = LANES<T>;
    if (p.k == 0) {
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j += L) {
                const int n = std::min<int64_t>(L, p.n - j);
                V<T> value = p.bias ? load(p.bias + j, n) : V<T>{};
                T* c = p.c + i * p.rc + j;
                if (p.add) value += load(c, n);
                store(c, activated<T>(value, p.activation), n);
            }
        return;
    }
    const bool copies = p.panels || p.cb != 1 || p.m > 3 * ROWS, turned = p.ra == 1 && p.ca != 1 && p.n > 4 * L;
    const int64_t step = depth_of_blocks(p.k);
    const int64_t high = (p.m + ROWS - 1) / ROWS;  // tiles above each other, as equal as can be
    for (int64_t k = 0; k < p.k; k += step) {
        const int64_t depth = std::min(step, p.k - k);
        const bool first = k == 0, last = k + depth == p.k;
        Product<T> part = p;
        if (turned) {
            T* to = own_memory<T, 1>(p.m * depth);
            for (int64_t t = 0; t < high; t++) {
                const int64_t i = p.m * t / high, rows = p.m * (t + 1) / high - i;
                copy_rows(p.a + i + k * p.ca, p.ca, rows, depth, to + i * depth);
            }
        }
        const int64_t bytes = p.m * depth * (int64_t)sizeof(T), blocks = bytes > CACHED * 3 / 2 ? (bytes + CACHED - 1) / CACHED : 1;
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t from = high * block / blocks, to = high * (block + 1) / blocks;
            for (int64_t j = 0; j < p.n; j += 2 * L) {
                const int width = std::min<int64_t>(2 * L, p.n - j);
                const T* b = p.b + k * p.rb + j;
                int64_t rb = p.rb;
                if (p.panels) {
                    b = p.panels + k * p.across + (p.column + j) * depth, rb = 2 * L;
                } else if (copies) {
                    T* memory = own_memory<T, 0>(DEPTH * 2 * L);
                    copy_panel(p, k, j, depth, width, memory);
                    b = memory, rb = 2 * L;
                }
                for (int64_t t = from; t < to; t++) {
                    const int64_t i = p.m * t / high;
                    const int rows = (int)(p.m * (t + 1) / high - i);
                    if (turned) part.a = own_memory<T, 1>(0) + i * depth - i - k * rows, part.ca = rows;
                    if (width > L) tiles<T, 2, ROWS>(part, rows, i, j, k, depth, b, rb, width, copies, first, last);
                    else tiles<T, 1, ROWS>(part, rows, i, j, k, depth, b, rb, width, copies, first, last);
                }
            }
        }
    }
}

// Panels of the whole of B, block by block of its rows.
template <class T> const T* panels_of(const Product<T>& p) {
    Kept* kept = kept_panels<T>(Factor{p.b, p.rb, p.cb, p.k, p.n}, p.m, p.cb != 1, p.k * p.across);
    if (!kept) return nullptr;
    T* to = (T*)kept->memory;
    if (kept->ready) return to;
    const int64_t step = depth_of_blocks(p.k);
    for (int64_t k = 0; k < p.k; k += step) {
        const int64_t depth = std::min(step, p.k - k);
        for (int64_t j = 0; j < p.n; j += 2 * LANES<T>)
            copy_panel(p, k, j, depth, (int)std::min<int64_t>(2 * LANES<T>, p.n - j), to + k * p.across + j * depth);
    }
    kept->ready = true;
    return to;
}

// `most`: threads. `steady`: B does not change until the wave ends.
template <class T> void multiply(Product<T> p, int64_t most, bool steady) {
    p.across = (p.n + 2 * LANES<T> - 1) / (2 * LANES<T>) * 2 * LANES<T>;
    if (steady && p.k > 0 && p.m > 0 && p.n > 0) p.panels = panels_of(p);
#ifndef _OPENMP
    (void)most;
    multiply_alone(p);
#else
    const int64_t work = p.m * p.n * p.k;
    const int threads = work < 2 * WORTH_THREADS ? 1 : (int)std::min<int64_t>(most, work / WORTH_THREADS);
    if (threads < 2) return multiply_alone(p);
    const bool by_rows = p.m >= p.n;
    const int64_t step = by_rows ? ROWS : 2 * LANES<T>, size = by_rows ? p.m : p.n, steps = (size + step - 1) / step;
#pragma omp parallel num_threads(threads)
    {
        const int64_t mine = omp_get_thread_num(), of = omp_get_num_threads();
        const int64_t from = std::min(size, steps * mine / of * step), to = std::min(size, steps * (mine + 1) / of * step);
        if (from < to) {
            Product<T> part = p;
            if (by_rows) part.m = to - from, part.a += from * p.ra, part.c += from * p.rc;
            else {
                part.n = to - from, part.b += from * p.cb, part.c += from, part.bias = p.bias ? p.bias + from : nullptr;
                part.column = from;
            }
            multiply_alone(part);
        }
    }
#endif
}

}  // namespace ampnet
