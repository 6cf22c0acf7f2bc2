package flow_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

func TestRun(t *testing.T) {
	boom := errors.New("boom")
	cases := map[string]struct {
		reason  string
		results []flow.Result
		ran     int
		want    flow.Outcome
		wantErr error
	}{
		"all continue": {
			reason:  "a pass in which every step's work is done reaches the end",
			results: []flow.Result{flow.Continue(), {}, flow.Fail(nil)},
			ran:     3,
			want:    flow.Outcome{},
		},
		"wait": {
			reason:  "a step that waits stops the pass and states what it waits for",
			results: []flow.Result{flow.Continue(), flow.Wait(time.Minute, "the node"), flow.Continue()},
			ran:     2,
			want:    flow.Outcome{Step: "1", After: time.Minute, Reason: "the node"},
		},
		"stop": {
			reason:  "a step that stops stops the pass without a time",
			results: []flow.Result{flow.Stop("nothing to do"), flow.Continue()},
			ran:     1,
			want:    flow.Outcome{Step: "0", Reason: "nothing to do"},
		},
		"gone": {
			reason:  "a step that finds the object gone stops the pass, and nothing is written",
			results: []flow.Result{flow.Gone("the finalizer is removed"), flow.Continue()},
			ran:     1,
			want:    flow.Outcome{Step: "0", Reason: "the finalizer is removed", Gone: true},
		},
		"fail": {
			reason:  "an error stops the pass and keeps its identity",
			results: []flow.Result{flow.Fail(boom), flow.Continue()},
			ran:     1,
			want:    flow.Outcome{Step: "0", Reason: "boom"},
			wantErr: boom,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ran := 0
			if stops := tc.results[max(tc.ran, 1)-1].StopsPass(); stops != (tc.want.Step != "") {
				t.Errorf("%s: StopsPass() = %v", tc.reason, stops)
			}
			var steps []flow.Step[*int]
			for i, result := range tc.results {
				steps = append(steps, flow.Step[*int]{Name: string(rune('0' + i)), Run: func(_ context.Context, n *int) flow.Result {
					*n++
					return result
				}})
			}
			got := flow.Run(t.Context(), &ran, steps)
			if ran != tc.ran {
				t.Errorf("%s: %d steps ran, want %d", tc.reason, ran, tc.ran)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(flow.Outcome{}, "Err")); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			if !errors.Is(got.Err, tc.wantErr) {
				t.Errorf("%s: error %v, want %v", tc.reason, got.Err, tc.wantErr)
			}
			if got.Done() != (got.Step == "") {
				t.Errorf("%s: Done() = %v for %+v", tc.reason, got.Done(), got)
			}
		})
	}
}

func TestSooner(t *testing.T) {
	for _, tc := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {-1, 0, 0}, {-2, -1, 0}, {0, 3, 3}, {3, 0, 3}, {3, -1, 3}, {2, 3, 2}, {3, 2, 2},
	} {
		if got := flow.Sooner(tc.a, tc.b); got != tc.want {
			t.Errorf("the sooner of %d and %d is %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
