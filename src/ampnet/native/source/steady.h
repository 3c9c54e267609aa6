// Steady factors: a weight does not change until its wave ends, so it is copied into panels once a wave, not once a product.
//
//     wave 1    product, product, product        counted: three uses of this weight
//     wave 2    copy, product, product, product  panels are kept, for all that multiply by it
//     wave 3    copy, ...                        it may have changed meanwhile: copied again
//
// Copying pays if several products read the panels: what a wave did is taken as what the next one will do.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include "vector.h"

namespace ampnet {

inline std::atomic<int64_t> wave{0};  // counted by Python, at the begin of each

struct Factor {
    const void* b;
    int64_t rb, cb, k, n;
    bool operator==(const Factor& o) const { return b == o.b && rb == o.rb && cb == o.cb && k == o.k && n == o.n; }
};

constexpr int PLACES = 128;                  // known factors of a thread, a power of two
constexpr int64_t MOST_KEPT = 64 << 20;      // bytes of panels, of a thread
constexpr int64_t WORTH_ROWS = 64;           // of all products of a wave, if panels save no turning

struct Kept {
    Factor factor{};
    int64_t wave = -1, uses = 0, rows = 0, uses_before = 0, rows_before = 0, size = 0;
    void* memory = nullptr;
    bool ready = false;
};

struct Shelf {
    Kept places[PLACES];
    int64_t bytes = 0;
    ~Shelf() {
        for (Kept& kept : places) std::free(kept.memory);
    }
    void drop(Kept& kept) {
        std::free(kept.memory);
        bytes -= kept.size;
        kept = Kept{};
    }
    // Where a factor is noted. Of two that would lie at one place, that of the later wave stays. None: the place is taken.
    Kept* find(const Factor& factor) {
        uint64_t at = ((uint64_t)factor.b >> 6) * 0x9E3779B97F4A7C15ull + (uint64_t)(factor.cb * 31 + factor.n);
        at ^= at >> 29;
        for (int i = 0; i < 4; i++) {
            Kept& kept = places[(at + i) % PLACES];
            if (kept.factor == factor) return &kept;
        }
        for (int i = 0; i < 4; i++) {
            Kept& kept = places[(at + i) % PLACES];
            if (kept.wave + 1 < wave) {
                drop(kept);
                kept.factor = factor;
                return &kept;
            }
        }
        return nullptr;
    }
};

// The panels of a factor, ready or to be filled; none if copying does not pay. `turns`: without panels each product turns it.
template <class T> inline Kept* kept_panels(const Factor& factor, int64_t rows, bool turns, int64_t count) {
    static thread_local Shelf shelf;
    Kept* kept = shelf.find(factor);
    if (!kept) return nullptr;
    if (const int64_t now = wave; kept->wave != now) {
        const bool next = kept->wave + 1 == now;
        kept->uses_before = next ? kept->uses : 0, kept->rows_before = next ? kept->rows : 0;
        kept->wave = now, kept->uses = kept->rows = 0, kept->ready = false;
    }
    kept->uses++, kept->rows += rows;
    if (kept->uses_before < 2 || (!turns && kept->rows_before < WORTH_ROWS)) return nullptr;
    if (!kept->memory) {
        const int64_t bytes = count * sizeof(T);
        if (shelf.bytes + bytes > MOST_KEPT) return nullptr;
        kept->memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        kept->size = bytes;
        shelf.bytes += bytes;
    }
    return kept;
}

}  // namespace ampnet
