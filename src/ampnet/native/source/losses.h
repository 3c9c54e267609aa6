// Losses: what a wave is judged by, with its gradient and its usual metric, in one pass over the predictions.
//
//     told    [ sum of losses | sum of metrics | 1 + the message whose label is out of range, or 0 ]
//
// Where a label is out of range, nothing else is told: the caller names the state. NaN and infinities come through.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include "gates.h"

namespace ampnet {

template <class T> struct Judged {
    double *told;
    T scale;  // of losses and gradients
};

// One choice among `n` adjacent scores; g: the softmax, less 1 at the right one. Returns the loss; `hit`: it was the first largest.
template <class T> T choose(const T* x, T* g, int64_t n, int64_t right, T scale, bool* hit) {
    constexpr int L = LANES<T>;
    T top = x[0];
    int64_t i = 1;
    if (n >= L) {
        V<T> most = load(x);
        for (i = L; i + L <= n; i += L) {
            V<T> more = load(x + i);
            most = more > most ? more : most;
        }
        top = most[0];
        for (int w = 1; w < L; w++) top = most[w] > top ? most[w] : top;
    }
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    *hit = x[right] == top;
    for (int64_t before = 0; *hit && before < right; before++) *hit = x[before] != top;
    V<T> sums = {};
    T rest = 0;
    for (int64_t j = 0; j < n; j += L) {
        const int m = n - j < L ? n - j : L;
        V<T> d = load(x + j, m) - top;
        V<T> e = exponential<T>(d);
        e = d < T(-87) ? V<T>{} : e;
        store(g + j, e, m);
        if (m == L) sums += e;
        else
            for (int w = 0; w < m; w++) rest += e[w];
    }
    for (int w = 0; w < L; w++) rest += sums[w];
    const T share = scale / rest;
    for (int64_t j = 0; j < n; j += L) {
        const int m = n - j < L ? n - j : L;
        store(g + j, load(g + j, m) * share, m);
    }
    g[right] -= scale;
    return std::log(rest) - (x[right] - top);
}

template <class T> void cross_entropy(int64_t count, int64_t width, Rows<T> x, const int64_t* labels, Rows<T> g, Judged<T> out) {
    double loss = 0, hits = 0;
    out.told[2] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (labels[i] < 0 || labels[i] >= width) return void(out.told[2] = i + 1);
        bool hit;
        loss += choose(x.at(i), g.at(i), width, labels[i], out.scale, &hit);
        hits += hit;
    }
    out.told[0] = loss * out.scale, out.told[1] = hits;
}

// Of each message one of its rows, which are single scores.
template <class T> void selection(int64_t count, const T* x, const int64_t* offsets, const int64_t* labels, T* g, Judged<T> out) {
    double loss = 0, hits = 0;
    out.told[2] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t start = offsets ? offsets[i] : i, n = (offsets ? offsets[i + 1] : i + 1) - start;
        if (labels[i] < 0 || labels[i] >= n) return void(out.told[2] = i + 1);
        bool hit;
        loss += choose(x + start, g + start, n, labels[i], out.scale, &hit);
        hits += hit;
    }
    out.told[0] = loss * out.scale, out.told[1] = hits;
}

// Means over the numbers of a row. Metric: the absolute error.
template <class T> void errors(int64_t count, int64_t width, Rows<T> x, Rows<T> y, Rows<T> g, bool squared, Judged<T> out) {
    double loss = 0, far = 0;
    const T share = out.scale / width;
    for (int64_t i = 0; i < count; i++) {
        T sum = 0, size = 0;
        for (int64_t j = 0; j < width; j++) {
            const T d = x.at(i)[j] - y.at(i)[j], absolute = std::abs(d);
            size += absolute, sum += squared ? d * d : absolute;
            // NaN less NaN: the sign of a number that is not one is not one either.
            g.at(i)[j] = share * (squared ? 2 * d : d > 0 ? T(1) : d < 0 ? T(-1) : d * 0);
        }
        loss += sum, far += size;
    }
    out.told[0] = loss / width * out.scale, out.told[1] = far / width, out.told[2] = 0;
}

// Of logits. Metric: the share of a row's logits that have the sign of their label.
template <class T> void binary_cross_entropy(int64_t count, int64_t width, Rows<T> x, Rows<T> y, Rows<T> g, Judged<T> out) {
    double loss = 0, hits = 0;
    const T share = out.scale / width;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++) {
            const T z = x.at(i)[j], label = y.at(i)[j], e = std::exp(-std::abs(z));
            loss += std::max(z, T(0)) - z * label + std::log1p(e) + z * 0;
            hits += (z > 0) == (label > T(0.5));
            g.at(i)[j] = share * ((z < 0 ? e : T(1)) / (1 + e) - label);
        }
    out.told[0] = loss / width * out.scale, out.told[1] = hits / width, out.told[2] = 0;
}

// NaN if any number is not finite, else 0, is added to `told`.
template <class T> void look(int64_t count, const T* x, double* told) {
    constexpr int L = LANES<T>;
    V<T> a = {}, b = {}, c = {}, d = {};
    int64_t i = 0;
    for (; i + 4 * L <= count; i += 4 * L) {
        a += load(x + i) * T(0), b += load(x + i + L) * T(0), c += load(x + i + 2 * L) * T(0), d += load(x + i + 3 * L) * T(0);
    }
    for (; i < count; i += L) a += load(x + i, count - i < L ? (int)(count - i) : L) * T(0);
    a = (a + b) + (c + d);
    double sum = 0;
    for (int w = 0; w < L; w++) sum += a[w];
    *told += sum;
}

// The largest absolute value, NaN if there is one, replaces `told` if it is larger. Bits of a number without its sign compare as it
// does, and NaN is above all.
template <class T> void largest(int64_t count, const T* x, double* told) {
    constexpr int L = LANES<T>;
    constexpr typename Of<T>::Int SIZE = (typename Of<T>::Int)(~(uint64_t)0 >> (65 - 8 * sizeof(T)));
    I<T> most[4] = {};
    for (int64_t i = 0; i < count; i += 4 * L)
#pragma GCC unroll 4
        for (int part = 0; part < 4; part++) {
            const int64_t left = count - i - part * L;
            if (left <= 0) break;
            const I<T> size = (I<T>)(left < L ? load(x + i + part * L, (int)left) : load(x + i + part * L)) & SIZE;
            most[part] = size > most[part] ? size : most[part];
        }
    for (int part = 0; part < 4; part++)
        for (int w = 0; w < L; w++) {
            const T value = ((V<T>)most[part])[w];
            if (!(value <= *told)) *told = value;
            if (value != value) return;
        }
}

// Counts indices outside of a table.
inline void range(int64_t n, const int64_t* index, int64_t size, double* found) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong += (uint64_t)index[i] >= (uint64_t)size;
    *found += wrong;
}

}  // namespace ampnet
