package transfer

import (
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	b := NewBudget(1<<20, nil)
	began := time.Now()
	for range 4 {
		if err := b.took(t.Context(), 64<<10); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 180*time.Millisecond {
		t.Errorf("256 KiB at 1 MiB a second took %v", took)
	}
}
