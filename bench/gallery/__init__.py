"""Models of `examples/gallery`, each beside its batched torch module: `bench.gallery.peers`."""
