package llama

import (
	"fmt"
	"runtime/debug"

	"llmops/serving/embedded/core"
)

// allocate makes an empty cache.
func (m *Executor) allocate() {
	s := m.shape
	m.cache = make([]layerCache, s.Layers)
	for i := range m.cache {
		l, n := &m.weights.layers[i], m.blocks*core.BlockSize*s.KVHeads*s.HeadDim
		m.cache[i] = layerCache{newCache(m.kv, n, s.HeadDim, l.kScale), newCache(m.kv, n, s.HeadDim, l.vScale)}
	}
}

// Sleep gives the cache's memory back, at level 2 that of the weights and adapters
// too. No step may be computed until Wake.
func (m *Executor) Sleep(level int) {
	m.cache = nil
	if level > 1 {
		m.weights = nil
		clear(m.adapters)
	}
	debug.FreeOSMemory()
}

// Wake makes steps possible again, with an empty cache and, after level 2, weights
// read anew and no adapters.
func (m *Executor) Wake() error {
	if m.weights == nil {
		w, _, err := loadWeights(m.dir, m.shape, m.kv)
		if err != nil {
			return fmt.Errorf("waking up: %w", err)
		}
		if w.fingerprint != m.fingerprint {
			return fmt.Errorf("waking up: %s holds another model than before the sleep: start a new engine", m.dir)
		}
		m.weights = w
	}
	m.allocate()
	return nil
}
