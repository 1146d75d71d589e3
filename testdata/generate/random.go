package main

import "math/rand/v2"

// random is a source of choices. It takes whole 64-bit words from PCG-DXSM, whose
// output math/rand/v2 fixes, and does the rest itself, because how that package
// derives smaller numbers from a word is not promised.
type random struct{ words *rand.PCG }

func newRandom(seed uint64) random { return random{rand.NewPCG(seed, 0)} }

// below returns a number from 0 to n-1.
func (r random) below(n int) int { return int(r.words.Uint64() % uint64(n)) }

// between returns a number from low to high, both included.
func (r random) between(low, high int) int { return low + r.below(high-low+1) }

// pick returns one of the values.
func pick[T any](r random, values ...T) T { return values[r.below(len(values))] }

// shuffle puts values into a random order (Fisher-Yates).
func shuffle[T any](r random, values []T) {
	for i := len(values) - 1; i > 0; i-- {
		j := r.below(i + 1)
		values[i], values[j] = values[j], values[i]
	}
}
