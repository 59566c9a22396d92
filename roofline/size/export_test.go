package size

// Mean is what streams of one pool see.
func (s *Sheet) Mean(batch int) float64 { return s.mean(batch) }
