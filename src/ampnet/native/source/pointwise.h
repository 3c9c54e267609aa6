// Pointwise: a straight line of elementwise steps on rows, some rows at a time, so that what a step makes is still in the
// cache when the next one reads it.
//
//     step    [ what | add | width | out: at, row, step | a: at, row, step | b: ... | c: ... ]      15 words
//
// `row`: from one row to the next, 0 for a constant. `step`: 1, or 0 where one number meets all columns. A number is a
// constant of one row and one column. `add`: to what is there.
#pragma once
#include <cmath>
#include "gates.h"

namespace ampnet {

enum Pointwise : int64_t {
    COPY, ADD, SUB, MUL, DIV, NEG, ACT_RELU, ACT_TANH, ACT_SIGMOID, EXP, LOG, SQUARE, ABS,
    RELU_BACK, TANH_BACK, SIGMOID_BACK, SQUARE_BACK, ABS_BACK, DIV_BACK, TOTAL
};
constexpr int64_t STEP_WORDS = 15, TOGETHER = 16;

template <class T> struct Columns {
    T* p;
    int64_t row, step;
    V<T> get(int64_t i, int64_t j, int m) const {
        const T* at = p + i * row;
        return step ? load(at + j, m) : all<T>(*at);
    }
};
template <class T> inline Columns<T> columns(const int64_t* w) { return {(T*)w[0], w[1], w[2]}; }

template <class T, class F> inline void each(const int64_t* s, int64_t begin, int64_t end, F f) {
    constexpr int L = LANES<T>;
    const bool add = s[1] != 0;
    const int64_t width = s[2];
    const Columns<T> out = columns<T>(s + 3), a = columns<T>(s + 6), b = columns<T>(s + 9), c = columns<T>(s + 12);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < width; j += L) {
            const int m = width - j < L ? (int)(width - j) : L;
            T* to = out.p + i * out.row + j;
            V<T> y = f(a.get(i, j, m), b, c, i, j, m);
            store(to, add ? load(to, m) + y : y, m);
        }
}
template <class T, class F> inline V<T> number_by_number(V<T> x, F f) {
    for (int w = 0; w < LANES<T>; w++) x[w] = f(x[w]);
    return x;
}

template <class T> void total(const int64_t* s, int64_t begin, int64_t end) {
    constexpr int L = LANES<T>;
    const Columns<T> out = columns<T>(s + 3), a = columns<T>(s + 6);
    for (int64_t i = begin; i < end; i++) {
        V<T> sums = {};
        for (int64_t j = 0; j < s[2]; j += L) sums += load(a.p + i * a.row + j, s[2] - j < L ? (int)(s[2] - j) : L);
        T sum = 0;
        for (int w = 0; w < L; w++) sum += sums[w];
        T& to = out.p[i * out.row];
        to = s[1] ? to + sum : sum;
    }
}

#define EACH(expression)                                                                                              \
    return each<T>(s, begin, end, [](V<T> a, const Columns<T>& b, const Columns<T>& c, int64_t i, int64_t j, int m) { \
        (void)b, (void)c, (void)i, (void)j, (void)m;                                                                  \
        return V<T>(expression);                                                                                      \
    })
#define B b.get(i, j, m)
#define C c.get(i, j, m)

template <class T> void one_step(const int64_t* s, int64_t begin, int64_t end) {
    switch (s[0]) {
        case COPY: EACH(a);
        case ADD: EACH(a + B);
        case SUB: EACH(a - B);
        case MUL: EACH(a * B);
        case DIV: EACH(a / B);
        case NEG: EACH(-a);
        case ACT_RELU: EACH(activated<T>(a, RELU));
        case ACT_TANH: EACH(activated<T>(a, TANH));
        case ACT_SIGMOID: EACH(activated<T>(a, SIGMOID));
        case EXP: EACH(number_by_number<T>(a, [](T x) { return std::exp(x); }));
        case LOG: EACH(number_by_number<T>(a, [](T x) { return std::log(x); }));
        case SQUARE: EACH(a * a);
        case ABS: EACH(a < T(0) ? -a : a);
        // a: the gradient of the result; b: what was kept; c: the divisor
        case RELU_BACK: EACH(before<T>(a, B, RELU));
        case TANH_BACK: EACH(before<T>(a, B, TANH));
        case SIGMOID_BACK: EACH(before<T>(a, B, SIGMOID));
        case SQUARE_BACK: EACH(a * B * T(2));
        case ABS_BACK: EACH(B < T(0) ? -a : (B > T(0) ? a : a * T(0)));
        case DIV_BACK: EACH(-(a / C * B));
        case TOTAL: return total<T>(s, begin, end);
    }
}
#undef EACH
#undef B
#undef C

template <class T> void pointwise(int64_t rows, int64_t count, const int64_t* steps) {
    for (int64_t begin = 0; begin < rows; begin += TOGETHER) {
        const int64_t end = begin + TOGETHER < rows ? begin + TOGETHER : rows;
        for (int64_t k = 0; k < count; k++) one_step<T>(steps + k * STEP_WORDS, begin, end);
    }
}

}  // namespace ampnet
