// Gates: what a recurrent cell computes element by element behind its matrix products, forward and backward, in one pass.
//
//     GRU     r, z = sigmoid(gi + gh)   n = tanh(gi_n + r gh_n)   h' = (1 - z) n + z h
//     cell    c' = i u + sum of f_k c_k           h' = o tanh(c')           LSTM: one c; Tree-LSTM: none or two
//
// A tensor is a pointer to its first row and the distance between rows.
#pragma once
#include "vector.h"

namespace ampnet {

template <class T> struct Rows {
    T* p;
    int64_t stride;
    T* at(int64_t i) const { return p + i * stride; }
};

template <class T> struct Gru {
    int64_t rows, n;
    Rows<T> gi{}, gh{}, h{}, r{}, z{}, fresh{}, hn{}, y{}, g{}, di{}, dh{}, through{};
};

template <class T> void gru_forward(const Gru<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t i = 0; i < s.rows; i++) {
        const T *gi = s.gi.at(i), *gh = s.gh.at(i), *h = s.h.at(i);
        for (int64_t j = 0; j < s.n; j += L) {
            const int m = s.n - j < L ? s.n - j : L;
            V<T> r = sigmoid<T>(load(gi + j, m) + load(gh + j, m));
            V<T> z = sigmoid<T>(load(gi + s.n + j, m) + load(gh + s.n + j, m));
            V<T> hn = load(gh + 2 * s.n + j, m);
            V<T> fresh = tanh<T>(load(gi + 2 * s.n + j, m) + r * hn);
            V<T> before = load(h + j, m);
            store(s.r.at(i) + j, r, m), store(s.z.at(i) + j, z, m), store(s.hn.at(i) + j, hn, m);
            store(s.fresh.at(i) + j, fresh, m);
            store(s.y.at(i) + j, fresh + z * (before - fresh), m);
        }
    }
}

template <class T> void gru_backward(const Gru<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t i = 0; i < s.rows; i++) {
        T *di = s.di.at(i), *dh = s.dh.at(i);
        for (int64_t j = 0; j < s.n; j += L) {
            const int m = s.n - j < L ? s.n - j : L;
            V<T> g = load(s.g.at(i) + j, m), z = load(s.z.at(i) + j, m), r = load(s.r.at(i) + j, m);
            V<T> fresh = load(s.fresh.at(i) + j, m), hn = load(s.hn.at(i) + j, m), h = load(s.h.at(i) + j, m);
            V<T> through = g * z, d_z = (h - fresh) * g * (T(1) - z) * z;
            V<T> d_new = (g - through) * (T(1) - fresh * fresh), d_r = hn * d_new * (T(1) - r) * r;
            store(s.through.at(i) + j, through, m);
            store(di + j, d_r, m), store(di + s.n + j, d_z, m), store(di + 2 * s.n + j, d_new, m);
            store(dh + j, d_r, m), store(dh + s.n + j, d_z, m), store(dh + 2 * s.n + j, d_new * r, m);
        }
    }
}

template <class T> struct Cell {
    int64_t rows, n, children;
    int64_t i, u, o, f;  // columns where gates begin; f: of the first child's
    Rows<T> gates{}, c{}, y{}, squashed{}, g{}, dc{};
};

template <class T> void cell_forward(const Cell<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t row = 0; row < s.rows; row++) {
        T *gates = s.gates.at(row), *y = s.y.at(row);
        for (int64_t j = 0; j < s.n; j += L) {
            const int m = s.n - j < L ? s.n - j : L;
            T* at = gates + j;
            V<T> i = sigmoid<T>(load(at + s.i, m)), o = sigmoid<T>(load(at + s.o, m)), u = tanh<T>(load(at + s.u, m));
            V<T> c = i * u;
            for (int64_t k = 0; k < s.children; k++) {
                V<T> f = sigmoid<T>(load(at + s.f + k * s.n, m));
                c += f * load(s.c.at(row) + k * s.n + j, m);
                store(at + s.f + k * s.n, f, m);
            }
            V<T> squashed = tanh<T>(c);
            store(at + s.i, i, m), store(at + s.o, o, m), store(at + s.u, u, m);
            store(s.squashed.at(row) + j, squashed, m);
            store(y + j, o * squashed, m), store(y + s.n + j, c, m);
        }
    }
}

// The gradients of the gates take their places; `dc` gets those of the children's cells, if it is there.
template <class T> void cell_backward(const Cell<T>& s) {
    constexpr int L = LANES<T>;
    for (int64_t row = 0; row < s.rows; row++) {
        T* gates = s.gates.at(row);
        const T* g = s.g.at(row);
        for (int64_t j = 0; j < s.n; j += L) {
            const int m = s.n - j < L ? s.n - j : L;
            T* at = gates + j;
            V<T> i = load(at + s.i, m), o = load(at + s.o, m), u = load(at + s.u, m);
            V<T> squashed = load(s.squashed.at(row) + j, m), gh = load(g + j, m);
            V<T> dc = load(g + s.n + j, m) + gh * o * (T(1) - squashed * squashed);
            for (int64_t k = 0; k < s.children; k++) {
                V<T> f = load(at + s.f + k * s.n, m), c = load(s.c.at(row) + k * s.n + j, m);
                if (s.dc.p) store(s.dc.at(row) + k * s.n + j, dc * f, m);
                store(at + s.f + k * s.n, dc * c * (T(1) - f) * f, m);
            }
            store(at + s.i, dc * u * (T(1) - i) * i, m);
            store(at + s.u, dc * i * (T(1) - u * u), m);
            store(at + s.o, gh * squashed * (T(1) - o) * o, m);
        }
    }
}

}  // namespace ampnet
