package config

import (
	"strings"
	"testing"
	"time"

	"llmops/serving/scale"
)

const scaled = good + `scale:
  max: 8
  streams: 192
  kv: 80%
  burn: 6x
  ahead: 10m
  zone: Europe/Berlin
  schedule: [{days: mon-fri, from: "07:30", to: "19:00", min: 4}, {days: "sat,sun", from: "22:00", to: "24:00", min: 2}]
`

func TestScale(t *testing.T) {
	if s, err := Model(write(t, good)); err != nil || s.Scale != nil {
		t.Fatalf("without scale: %+v, %v", s.Scale, err)
	}
	s, err := Model(write(t, scaled))
	if err != nil {
		t.Fatal(err)
	}
	p := s.Scale
	week := [7]bool{false, true, true, true, true, true, false}
	if p.Min != 1 || p.Max != 8 || p.Streams != 192 || p.KV != 0.8 || p.Burn != 6 || p.Up != 3*time.Minute || p.Down != 15*time.Minute || p.Ahead != 10*time.Minute || p.Zone != "Europe/Berlin" {
		t.Errorf("%+v", p)
	}
	want := []scale.Window{{Days: week, From: 7*time.Hour + 30*time.Minute, To: 19 * time.Hour, Min: 4}, {Days: [7]bool{0: true, 6: true}, From: 22 * time.Hour, To: 24 * time.Hour, Min: 2}}
	if len(p.Schedule) != 2 || p.Schedule[0] != want[0] || p.Schedule[1] != want[1] {
		t.Errorf("%+v, want %+v", p.Schedule, want)
	}
}

func TestScaleRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"no max", "  max: 8\n", "", "max is 0, below min 1"},
		{"a max below min", "max: 8", "max: 8\n  min: 9", "max is 8, below min 9"},
		{"nothing to follow", scaled[strings.Index(scaled, "  streams"):], "", "none of streams, kv, burn and schedule"},
		{"a share without a unit", "kv: 80%", "kv: 80", "scale.kv"},
		{"no such zone", "Europe/Berlin", "Mars/Olympus", "scale.zone"},
		{"no such day", "mon-fri", "mon-fry", "days such as mon-fri"},
		{"no such hour", `"07:30"`, `"25:30"`, "07:30"},
		{"a floor above max", "min: 4", "min: 9", "want 1 to max 8"},
		{"an unknown key", "streams: 192", "gpu_utilisation: 80%", "gpu_utilisation"},
	} {
		_, err := Model(write(t, strings.Replace(scaled, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "model.yaml") {
			t.Errorf("%s: error is\n%v\nwant %q and the file's name in it", c.name, err, c.want)
		}
	}
}
