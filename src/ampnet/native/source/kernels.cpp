// Kernels: what is called from Python. A call is a record of 64-bit words,
//
//     [function, length of the record, threads, arguments ...]
//
// so records that lie one after the other are a program, and `ampnet_run` goes through it in one call from Python. Pointers are
// addresses, tensors are (address of the first row, distance between rows), an address of 0 is a tensor that is not there.
#include "gates.h"
#include "losses.h"
#include "pointwise.h"
#include "product.h"
#include "rows.h"
#include "segments.h"
#include "steps.h"

using namespace ampnet;
typedef const int64_t* Words;

static inline double number(int64_t word) {
    double x;
    memcpy(&x, &word, sizeof x);
    return x;
}
template <class T> static inline Rows<T> rows(Words w) { return {(T*)w[0], w[1]}; }

template <class T> static inline Judged<T> judged(Words w) { return {(double*)w[0], (T)number(w[1])}; }

template <class T> static void product(Words w, int64_t threads) {
    Product<T> p{w[0], w[1], w[2], (const T*)w[3], w[4], w[5], (const T*)w[6], w[7], w[8], (T*)w[9], w[10],
                 w[11] != 0, (const T*)w[12], w[13], (T)number(w[14])};
    multiply(p, threads, w[15] != 0);
}
template <class T> static void gru(Words w, int64_t, void (*how)(const Gru<T>&)) {
    Gru<T> s{w[0], w[1]};
    Rows<T>* field = &s.gi;
    for (int i = 0; i < 12; i++) field[i] = rows<T>(w + 2 + 2 * i);
    how(s);
}
template <class T> static void cell(Words w, int64_t, void (*how)(const Cell<T>&)) {
    Cell<T> s{w[0], w[1], w[2], w[3], w[4], w[5], w[6]};
    Rows<T>* field = &s.gates;
    for (int i = 0; i < 6; i++) field[i] = rows<T>(w + 7 + 2 * i);
    how(s);
}

template <class T> static void segments(Words w, int64_t, void (*how)(const Segments<T>&)) {
    how(Segments<T>{w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), (Words)w[6], (Words)w[7], rows<T>(w + 8)});
}

template <class T> static void adam(Words w, int64_t) {
    ampnet::adam(Moments<T>{w[0], (T*)w[1], (T*)w[2], (T*)w[3], (T*)w[4], (float*)w[5], number(w[6]), number(w[7]),
                            number(w[8]), number(w[9]), number(w[10]), number(w[11]), w[12] != 0});
}
template <class T> static void adagrad(Words w, int64_t) {
    ampnet::adagrad(Squares<T>{w[0], (T*)w[1], (T*)w[2], (T*)w[3], (float*)w[4], number(w[5]), number(w[6]), number(w[7]),
                               number(w[8]), number(w[9])});
}

#define BOTH(name, body)                                                            \
    extern "C" void name##_float32(Words w, int64_t threads) { typedef float T; body; }  \
    extern "C" void name##_float64(Words w, int64_t threads) { typedef double T; body; }

BOTH(product, product<T>(w, threads))
BOTH(gru_forward, gru<T>(w, threads, ::gru_forward<T>))
BOTH(gru_backward, gru<T>(w, threads, ::gru_backward<T>))
BOTH(cell_forward, cell<T>(w, threads, ::cell_forward<T>))
BOTH(cell_backward, cell<T>(w, threads, ::cell_backward<T>))
BOTH(fetch, (void)threads; fetch<T>(w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), (Words)w[6]))
BOTH(clear, (void)threads; clear<T>(w[0], w[1], rows<T>(w + 2)))
BOTH(adam, ::adam<T>(w, threads))
BOTH(adagrad, ::adagrad<T>(w, threads))
BOTH(add_back, (void)threads; add_back<T>(w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), (Words)w[6]))
BOTH(sum_up, (void)threads; sum_up<T>(w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), (Words)w[6], (Words)w[7], w[8] != 0))
BOTH(mean, segments<T>(w, threads, ::mean<T>))
BOTH(mean_back, segments<T>(w, threads, ::mean_back<T>))
BOTH(logsumexp, segments<T>(w, threads, ::logsumexp<T>))
BOTH(logsumexp_back, segments<T>(w, threads, ::logsumexp_back<T>))
BOTH(sum_rows, (void)threads; sum_rows<T>(w[0], w[1], (T*)w[2], rows<T>(w + 3), w[5] != 0))
BOTH(activate, (void)threads; activate<T>(w[0], w[1], rows<T>(w + 2), w[4]))
BOTH(activate_back, (void)threads; activate_back<T>(w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), w[6]))
BOTH(cross_entropy, (void)threads; cross_entropy<T>(w[0], w[1], rows<T>(w + 2), (Words)w[4], rows<T>(w + 5), judged<T>(w + 7)))
BOTH(selection, (void)threads; selection<T>(w[0], (const T*)w[1], (Words)w[2], (Words)w[3], (T*)w[4], judged<T>(w + 5)))
BOTH(errors, (void)threads; errors<T>(w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), rows<T>(w + 6), w[8] != 0, judged<T>(w + 9)))
BOTH(binary_cross_entropy, (void)threads;
     binary_cross_entropy<T>(w[0], w[1], rows<T>(w + 2), rows<T>(w + 4), rows<T>(w + 6), judged<T>(w + 8)))
BOTH(largest, (void)threads; largest<T>(w[0], (const T*)w[1], (double*)w[2]))
BOTH(pointwise, (void)threads; pointwise<T>(w[0], w[1], w + 2))
BOTH(range, (void)threads; (void)sizeof(T); range(w[0], (Words)w[1], w[2], (double*)w[3]))
BOTH(look, (void)threads; look<T>(w[0], (const T*)w[1], (double*)w[2]))

extern "C" void ampnet_run(Words at, int64_t words) {
    for (Words end = at + words; at < end; at += at[1]) ((void (*)(Words, int64_t))at[0])(at + 3, at[2]);
}
extern "C" void ampnet_begin_wave() { wave++; }
extern "C" int64_t ampnet_bytes() { return BYTES; }
