// Segments: rows reduced by target. Those of target t are from[index[offsets[t]]] .. from[index[offsets[t + 1]]].
//
//     mean         forward: their sum times the share of each        backward: the target's gradient times that share
//     logsumexp    forward: with the largest taken away first         backward: the gradient times each row's share of the sum
//
// The gradients of rows are added to what is there, so a row that several targets read gets all of theirs.
#pragma once
#include <algorithm>
#include <cmath>
#include "rows.h"

namespace ampnet {

template <class T> struct Segments {
    int64_t targets, width;
    Rows<T> to, from;
    const int64_t *index, *offsets;
    Rows<T> shares;  // of logsumexp: a row for each that is read
};

template <class T> void mean(const Segments<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t t = 0; t < s.targets; t++) {
        const int64_t first = s.offsets[t], last = s.offsets[t + 1];
        const T share = T(1.0 / std::max<int64_t>(last - first, 1));
        for (int64_t j = 0; j < s.width; j += L) {
            const int m = (int)std::min<int64_t>(L, s.width - j);
            V<T> sum = {};
            for (int64_t e = first; e < last; e++) sum += load(s.from.at(s.index[e]) + j, m);
            store(s.to.at(t) + j, sum * share, m);
        }
    }
}

// `to`: gradients of rows, `from`: those of targets.
template <class T> void mean_back(const Segments<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t t = 0; t < s.targets; t++) {
        const int64_t first = s.offsets[t], last = s.offsets[t + 1];
        const T share = T(1.0 / std::max<int64_t>(last - first, 1));
        for (int64_t j = 0; j < s.width; j += L) {
            const int m = (int)std::min<int64_t>(L, s.width - j);
            const V<T> g = load(s.from.at(t) + j, m) * share;
            for (int64_t e = first; e < last; e++) {
                T* to = s.to.at(s.index[e]) + j;
                store(to, load(to, m) + g, m);
            }
        }
    }
}

// As torch does it, an infinite maximum is not taken away: infinity less itself is not a number.
template <class T> void logsumexp(const Segments<T>& s) {
    for (int64_t t = 0; t < s.targets; t++) {
        const int64_t first = s.offsets[t], last = s.offsets[t + 1];
        for (int64_t j = 0; j < s.width; j++) {
            T top = -INFINITY, sum = 0;
            bool odd = false;
            for (int64_t e = first; e < last; e++) {
                const T x = s.from.at(s.index[e])[j];
                odd |= x != x, top = x > top ? x : top;
            }
            if (std::isinf(top)) top = 0;
            for (int64_t e = first; e < last; e++) sum += std::exp(s.from.at(s.index[e])[j] - top);
            const T y = odd ? T(NAN) : std::log(sum) + top;
            s.to.at(t)[j] = y;
            for (int64_t e = first; e < last; e++) s.shares.at(e)[j] = std::exp(s.from.at(s.index[e])[j] - y);
        }
    }
}

template <class T> void logsumexp_back(const Segments<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t t = 0; t < s.targets; t++)
        for (int64_t j = 0; j < s.width; j += L) {
            const int m = (int)std::min<int64_t>(L, s.width - j);
            const V<T> g = load(s.from.at(t) + j, m);
            for (int64_t e = s.offsets[t]; e < s.offsets[t + 1]; e++) {
                T* to = s.to.at(s.index[e]) + j;
                store(to, load(to, m) + load(s.shares.at(e) + j, m) * g, m);
            }
        }
}

}  // namespace ampnet
