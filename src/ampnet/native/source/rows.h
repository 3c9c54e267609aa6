// Rows: fetched, added back, summed up by target, summed up altogether. A row is `width` adjacent numbers.
#pragma once
#include "gates.h"

namespace ampnet {

template <class T> inline void add_row(T* to, const T* from, int64_t width) {
    constexpr int L = LANES<T>;
    for (int64_t j = 0; j < width; j += L) {
        const int m = width - j < L ? width - j : L;
        store(to + j, load(to + j, m) + load(from + j, m), m);
    }
}

template <class T> inline void copy_row(T* to, const T* from, int64_t width) {
    constexpr int L = LANES<T>;
    for (int64_t j = 0; j < width; j += L) {
        const int m = width - j < L ? width - j : L;
        store(to + j, load(from + j, m), m);
    }
}

template <class T> void clear(int64_t count, int64_t width, Rows<T> to) {
    for (int64_t i = 0; i < count; i++) memset(to.at(i), 0, width * sizeof(T));
}

// Without an index: rows in order.
template <class T> void fetch(int64_t count, int64_t width, Rows<T> to, Rows<T> from, const int64_t* index) {
    for (int64_t i = 0; i < count; i++) copy_row(to.at(i), from.at(index ? index[i] : i), width);
}

template <class T> void add_back(int64_t count, int64_t width, Rows<T> to, Rows<T> from, const int64_t* index) {
    for (int64_t i = 0; i < count; i++) add_row(to.at(index ? index[i] : i), from.at(i), width);
}

// to[t] = (to[t] +) the sum of from[index[offsets[t]]] .. from[index[offsets[t + 1]]]
template <class T>
void sum_up(int64_t targets, int64_t width, Rows<T> to, Rows<T> from, const int64_t* index, const int64_t* offsets, bool add) {
    constexpr int L = LANES<T>;
    for (int64_t t = 0; t < targets; t++) {
        T* out = to.at(t);
        for (int64_t j = 0; j < width; j += L) {
            const int m = width - j < L ? width - j : L;
            V<T> sum = add ? load(out + j, m) : V<T>{};
            for (int64_t e = offsets[t]; e < offsets[t + 1]; e++) sum += load(from.at(index[e]) + j, m);
            store(out + j, sum, m);
        }
    }
}

// Sums of blocks of rows are summed up, and each block by four sums side by side: rounding errors of long columns stay
// small, and additions need not wait for each other.
template <class T> void sum_rows(int64_t count, int64_t width, T* total, Rows<T> from, bool add) {
    constexpr int L = LANES<T>;
    constexpr int64_t BLOCK = 256;
    for (int64_t j = 0; j < width; j += L) {
        const int m = width - j < L ? width - j : L;
        V<T> sum = add ? load(total + j, m) : V<T>{};
        for (int64_t start = 0; start < count; start += BLOCK) {
            const int64_t stop = start + BLOCK < count ? start + BLOCK : count;
            V<T> a = {}, b = {}, c = {}, d = {};
            int64_t i = start;
            for (; i + 4 <= stop; i += 4) {
                a += load(from.at(i) + j, m), b += load(from.at(i + 1) + j, m);
                c += load(from.at(i + 2) + j, m), d += load(from.at(i + 3) + j, m);
            }
            for (; i < stop; i++) a += load(from.at(i) + j, m);
            sum += (a + b) + (c + d);
        }
        store(total + j, sum, m);
    }
}

template <class T> void activate(int64_t count, int64_t width, Rows<T> y, int64_t how) {
    constexpr int L = LANES<T>;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j += L) {
            const int m = width - j < L ? width - j : L;
            store(y.at(i) + j, activated<T>(load(y.at(i) + j, m), how), m);
        }
}

template <class T> void activate_back(int64_t count, int64_t width, Rows<T> g, Rows<T> y, int64_t how) {
    constexpr int L = LANES<T>;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j += L) {
            const int m = width - j < L ? width - j : L;
            store(g.at(i) + j, before<T>(load(g.at(i) + j, m), load(y.at(i) + j, m), how), m);
        }
}

}  // namespace ampnet
