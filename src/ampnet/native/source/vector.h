// Vectors of as many numbers as a register of this processor holds, with loads and stores of fewer, and the functions that
// gates are made of. NaN goes in, NaN comes out: a poisoned row must be noticed further on.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace ampnet {

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

template <class T> struct Of;
template <> struct Of<float> {
    typedef float V __attribute__((vector_size(BYTES)));
    typedef float Loose __attribute__((vector_size(BYTES), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(BYTES)));
    typedef int32_t Int;
    static constexpr int mantissa = 23, bias = 127;
};
template <> struct Of<double> {
    typedef double V __attribute__((vector_size(BYTES)));
    typedef double Loose __attribute__((vector_size(BYTES), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(BYTES)));
    typedef int64_t Int;
    static constexpr int mantissa = 52, bias = 1023;
};
template <class T> using V = typename Of<T>::V;
template <class T> using I = typename Of<T>::I;
template <class T> constexpr int LANES = BYTES / sizeof(T);

template <class T> inline V<T> load(const T* p) { return *(const typename Of<T>::Loose*)p; }
template <class T> inline void store(T* p, V<T> v) { *(typename Of<T>::Loose*)p = v; }
// A broadcast. `x + 0` would be an addition: it is not x for -0. On Intel processors, which add where they multiply, that
// cost a third of the speed of products.
template <class T> inline V<T> all(T x) { return x - V<T>{}; }

// The first n numbers; the others are zero, and are not touched.
template <class T> inline V<T> load(const T* p, int n) {
    if (n >= LANES<T>) return load(p);
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (V<T>)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), (const float*)p);
    else return (V<T>)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), (const double*)p);
#else
    V<T> v = {};
    memcpy(&v, p, n * sizeof(T));
    return v;
#endif
}
template <class T> inline void store(T* p, V<T> v, int n) {
    if (n >= LANES<T>) return store(p, v);
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps((float*)p, (__mmask16)((1u << n) - 1), (__m512)v);
    else _mm512_mask_storeu_pd((double*)p, (__mmask8)((1u << n) - 1), (__m512d)v);
#else
    memcpy(p, &v, n * sizeof(T));
#endif
}

// 2^k e^r with k ln 2 + r = x: a polynomial for float, Cephes' fraction for double.
template <class T> inline V<T> exponential(V<T> x) {
    constexpr bool wide = sizeof(T) == 8;
    const T most = wide ? T(709.0) : T(88.3), least = wide ? T(-708.0) : T(-87.3);
    x = x > most ? all<T>(most) : x;
    x = x < least ? all<T>(least) : x;
    const T magic = wide ? T(6755399441055744.0) : T(12582912.0);  // 1.5 * 2^mantissa: adding it rounds to an integer
    V<T> shifted = x * T(1.4426950408889634074) + magic;
    V<T> k = shifted - magic;
    V<T> r = x - k * (wide ? T(6.93145751953125e-1) : T(0.693359375));
    r = r - k * (wide ? T(1.42860682030941723212e-6) : T(-2.12194440e-4));
    V<T> e;
    if constexpr (wide) {
        V<T> s = r * r;
        V<T> p = r * ((s * 1.26177193074810590878e-4 + 3.02994407707441961300e-2) * s + 9.99999999999999999910e-1);
        V<T> q = ((s * 3.00198505138664455042e-6 + 2.52448340349684104192e-3) * s + 2.27265548208155028766e-1) * s + 2.0;
        e = p / (q - p) * 2.0 + 1.0;
    } else {
        V<T> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        e = p * r * r + r + 1.0f;
    }
    I<T> power = ((I<T>)shifted + Of<T>::bias) << Of<T>::mantissa;
    return e * (V<T>)power;
}

template <class T> inline V<T> sigmoid(V<T> x) { return T(1) / (exponential<T>(-x) + T(1)); }

// Near zero a fraction or polynomial of x, elsewhere 1 - 2 / (e^2|x| + 1), with the sign of x.
template <class T> inline V<T> tanh(V<T> x) {
    V<T> size = x < T(0) ? -x : x, s = x * x, near;
    if constexpr (sizeof(T) == 8) {
        V<T> p = (s * -9.64399179425052238628e-1 - 9.92877231001918586564e1) * s - 1.61468768441708447952e3;
        V<T> q = ((s + 1.12811678491632931402e2) * s + 2.23548839060100448583e3) * s + 4.84406305325125486048e3;
        near = x + x * s * p / q;
    } else {
        V<T> p = s * -5.70498872745e-3f + 2.06390887954e-2f;
        p = p * s - 5.37397155531e-2f;
        p = p * s + 1.33314422036e-1f;
        p = p * s - 3.33332819422e-1f;
        near = x + x * s * p;
    }
    V<T> far = T(1) - T(2) / (exponential<T>(size + size) + T(1));
    far = x < T(0) ? -far : far;
    return size < T(0.625) ? near : far;
}

enum Activation : int64_t { NONE, RELU, TANH, SIGMOID };

template <class T> inline V<T> activated(V<T> x, int64_t how) {
    switch (how) {
        case RELU: return x < T(0) ? V<T>{} : x;
        case TANH: return tanh<T>(x);
        case SIGMOID: return sigmoid<T>(x);
        default: return x;
    }
}
// The gradient before an activation, from that behind it and from its output.
template <class T> inline V<T> before(V<T> g, V<T> y, int64_t how) {
    switch (how) {
        case RELU: return y <= T(0) ? V<T>{} : g;
        case TANH: return g * (T(1) - y * y);
        case SIGMOID: return g * (T(1) - y) * y;
        default: return g;
    }
}

}  // namespace ampnet
