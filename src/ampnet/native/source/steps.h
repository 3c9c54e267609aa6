// Steps of optimizers: one pass over a parameter, its gradient and its state. The gradient is divided by `count` first, in place.
// Steps are counted in a float32, as torch's fused kernels do.
#pragma once
#include <cmath>
#include "vector.h"

namespace ampnet {

template <class T> struct Moments {
    int64_t n;
    T *p, *g, *mean, *square;
    float* step;
    double rate, beta1, beta2, eps, decay, count;
    bool apart;  // decay the weights, not by way of the gradient (AdamW)
};

template <class T> void adam(const Moments<T>& s) {
    const double step = *s.step += 1;
    const T size = s.rate / (1 - std::pow(s.beta1, step)), root = 1 / std::sqrt(1 - std::pow(s.beta2, step));
    const T left1 = 1 - s.beta1, kept2 = s.beta2, left2 = 1 - s.beta2, eps = s.eps, count = s.count;
    const T shrink = s.apart ? 1 - s.rate * s.decay : 1, pull = s.apart ? 0 : s.decay;
    T *__restrict p = s.p, *__restrict g = s.g, *__restrict mean = s.mean, *__restrict square = s.square;
    for (int64_t i = 0; i < s.n; i++) {
        const T mine = g[i] / count, weight = p[i] * shrink;
        g[i] = mine;
        const T d = mine + pull * weight;
        mean[i] += left1 * (d - mean[i]);
        square[i] = kept2 * square[i] + left2 * d * d;
        p[i] = weight - size * mean[i] / (std::sqrt(square[i]) * root + eps);
    }
}

template <class T> struct Squares {
    int64_t n;
    T *p, *g, *sum;
    float* step;
    double rate, rate_decay, eps, decay, count;
};

template <class T> void adagrad(const Squares<T>& s) {
    const double step = *s.step += 1;
    const T rate = s.rate / (1 + (step - 1) * s.rate_decay), eps = s.eps, count = s.count, pull = s.decay;
    T *__restrict p = s.p, *__restrict g = s.g, *__restrict sum = s.sum;
    for (int64_t i = 0; i < s.n; i++) {
        const T mine = g[i] / count, d = mine + pull * p[i];
        g[i] = mine;
        sum[i] += d * d;
        p[i] -= rate * d / (std::sqrt(sum[i]) + eps);
    }
}

}  // namespace ampnet
