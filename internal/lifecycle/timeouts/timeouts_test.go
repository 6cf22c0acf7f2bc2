package timeouts

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestTimeout_Precedence(t *testing.T) {
	const flag = 7 * time.Minute
	with := func(d time.Duration) *v1alpha1.MachineConfiguration {
		own := &metav1.Duration{Duration: d}
		return &v1alpha1.MachineConfiguration{MachineCreationTimeout: own, MachineHealthTimeout: own, MachineDrainTimeout: own}
	}
	for name, tc := range map[string]struct {
		reason     string
		config     *v1alpha1.MachineConfiguration
		annotation string
		creation   Timeout
		others     Timeout
	}{
		"flag":                {"nothing else is set", nil, "", Timeout{flag, Flag}, Timeout{flag, Flag}},
		"empty configuration": {"no field is set", &v1alpha1.MachineConfiguration{}, "", Timeout{flag, Flag}, Timeout{flag, Flag}},
		"spec":                {"the spec comes before the flag", with(time.Hour), "", Timeout{time.Hour, Spec}, Timeout{time.Hour, Spec}},
		"zero":                {"zero is a value", with(0), "", Timeout{0, Spec}, Timeout{0, Spec}},
		"negative":            {"not a valid time", with(-time.Hour), "", Timeout{flag, Flag}, Timeout{flag, Flag}},
		"annotation":          {"it precedes the spec, for creations only", with(time.Hour), "30m", Timeout{30 * time.Minute, Annotation}, Timeout{time.Hour, Spec}},
		"invalid annotation":  {"it is ignored", with(time.Hour), "soon", Timeout{time.Hour, Spec}, Timeout{time.Hour, Spec}},
		"zero annotation":     {"zero is a value", with(time.Hour), "0s", Timeout{0, Annotation}, Timeout{time.Hour, Spec}},
		"negative annotation": {"it is ignored", nil, "-1m", Timeout{flag, Flag}, Timeout{flag, Flag}},
	} {
		t.Run(name, func(t *testing.T) {
			machine := &v1alpha1.Machine{Spec: v1alpha1.MachineSpec{MachineConfiguration: tc.config}}
			if tc.annotation != "" {
				machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: tc.annotation}
			}
			if got := Creation(machine, flag); got != tc.creation {
				t.Errorf("%s: creation %+v, want %+v", tc.reason, got, tc.creation)
			}
			for of, got := range map[string]Timeout{"health": Health(machine, flag), "drain": Drain(machine, flag)} {
				if got != tc.others {
					t.Errorf("%s: %s %+v, want %+v", tc.reason, of, got, tc.others)
				}
			}
		})
	}
}

// TestTimeout_Deadline checks that the timeout starts again after a time in which the state was unknown.
func TestTimeout_Deadline(t *testing.T) {
	begin := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	hour := Timeout{Duration: time.Hour}
	for name, tc := range map[string]struct {
		resumed []time.Time
		want    time.Time
	}{
		"no outage":         {nil, begin.Add(time.Hour)},
		"an earlier outage": {[]time.Time{begin.Add(-time.Minute), {}}, begin.Add(time.Hour)},
		"twice":             {[]time.Time{begin.Add(2 * time.Minute), begin.Add(time.Minute)}, begin.Add(62 * time.Minute)},
	} {
		if got := hour.Deadline(begin, tc.resumed...); !got.Equal(tc.want) {
			t.Errorf("%s: deadline %s, want %s", name, got, tc.want)
		}
	}
}

func TestMachineConfiguration_Defaults(t *testing.T) {
	for name, tc := range map[string]struct {
		config   *v1alpha1.MachineConfiguration
		disabled bool
		retries  int32
	}{
		"none":     {nil, false, 5},
		"empty":    {&v1alpha1.MachineConfiguration{}, false, 5},
		"enabled":  {&v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(false), MaxEvictRetries: ptr.To[int32](7)}, false, 7},
		"set":      {&v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(true), MaxEvictRetries: ptr.To[int32](0)}, true, 0},
		"negative": {&v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(false), MaxEvictRetries: ptr.To[int32](-1)}, false, 5},
	} {
		machine := &v1alpha1.Machine{Spec: v1alpha1.MachineSpec{MachineConfiguration: tc.config}}
		if got := HealthDisabled(machine); got != tc.disabled {
			t.Errorf("%s: health timeout disabled: %t", name, got)
		}
		if got := MaxEvictRetries(machine, 5); got != tc.retries {
			t.Errorf("%s: %d retries, want %d", name, got, tc.retries)
		}
	}
}

// TestDrainRestarted checks that a time counts only if it is between the beginning of the drain and now.
func TestDrainRestarted(t *testing.T) {
	begun := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	now := begun.Add(time.Hour)
	for name, tc := range map[string]struct {
		noted     string
		since     time.Time
		restarted bool
	}{
		"not noted":        {"", begun, false},
		"malformed":        {"soon", begun, false},
		"in between":       {"2026-01-02T12:30:00Z", begun.Add(30 * time.Minute), true},
		"at the beginning": {"2026-01-02T12:00:00Z", begun, true},
		"before":           {"2026-01-02T11:59:59Z", begun, false},
		"now":              {"2026-01-02T13:00:00Z", now, true},
		"in the future":    {"2026-01-02T13:00:01Z", begun, false},
	} {
		machine := &v1alpha1.Machine{}
		if tc.noted != "" {
			machine.Annotations = map[string]string{v1alpha1.AnnotationKeyDrainSince: tc.noted}
		}
		if since, restarted := DrainRestarted(machine, begun, now); !since.Equal(tc.since) || restarted != tc.restarted {
			t.Errorf("%s: %s, %t; want %s, %t", name, since, restarted, tc.since, tc.restarted)
		}
	}
	if since, restarted := DrainRestarted(&v1alpha1.Machine{}, time.Time{}, now); !since.IsZero() || restarted {
		t.Errorf("without an annotation and a start: %s, %t", since, restarted)
	}
}
