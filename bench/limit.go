package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// limit is how many requests per second the API server answers without other load. No manager can
// be faster, so it allows to compare times that were measured on different machines.
type limit struct {
	Creates float64 `json:"createsPerSecond"`
	Patches float64 `json:"patchesPerSecond"`
	Deletes float64 `json:"deletesPerSecond"`
}

const (
	// limitNamespace is not the manager's.
	limitNamespace = "limit"
	// limitRequests is enough for stable numbers.
	limitRequests = 500
)

// limits measures the API server.
func (w *setup) limits(ctx context.Context) (limit, error) {
	if err := w.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: limitNamespace}}); err != nil {
		return limit{}, err
	}
	var best limit
	for range 3 { // the first time warms up
		found, err := w.limitRound(ctx, w.limitRequests)
		if err != nil {
			return limit{}, fmt.Errorf("measuring the API server: %w", err)
		}
		best = limit{max(best.Creates, found.Creates), max(best.Patches, found.Patches), max(best.Deletes, found.Deletes)}
	}
	w.log("the API server's limit per second: %.0f creates, %.0f status patches, %.0f deletes", best.Creates, best.Patches, best.Deletes)
	return best, nil
}

// limitRound creates Machines, patches the status of each, and deletes them.
func (w *setup) limitRound(ctx context.Context, n int) (limit, error) {
	status := client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
		`{"status":{"currentStatus":{"phase":"Running","lastUpdateTime":%q},"lastOperation":{"description":"Machine joined","state":"Successful","type":"Create"}}}`,
		time.Now().UTC().Format(time.RFC3339)))
	var found limit
	for _, round := range []struct {
		rate *float64
		do   func(context.Context, *v1alpha1.Machine) error
	}{
		{&found.Creates, func(ctx context.Context, m *v1alpha1.Machine) error { return w.client.Create(ctx, m) }},
		{&found.Patches, func(ctx context.Context, m *v1alpha1.Machine) error { return w.client.Status().Patch(ctx, m, status) }},
		{&found.Deletes, func(ctx context.Context, m *v1alpha1.Machine) error { return w.client.Delete(ctx, m) }},
	} {
		began := time.Now()
		if err := inParallel(ctx, n, func(ctx context.Context, i int) error { return round.do(ctx, limitMachine(i)) }); err != nil {
			return limit{}, err
		}
		*round.rate = float64(n) / time.Since(began).Seconds()
	}
	return found, nil
}

func limitMachine(i int) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: limitNamespace, Name: fmt.Sprintf("machine-%d", i), Labels: map[string]string{"name": pool}},
		Spec:       machineSpec(),
	}
}

// least returns the time in which an API server at its limit answers the writes among requests.
// Reads are left out: a good manager makes none.
func (l limit) least(methods map[string]int) time.Duration {
	var seconds float64
	for method, count := range methods {
		switch method {
		case "POST":
			seconds += float64(count) / l.Creates
		case "PUT", "PATCH", "APPLY":
			seconds += float64(count) / l.Patches
		case "DELETE", "DELETECOLLECTION":
			seconds += float64(count) / l.Deletes
		}
	}
	return time.Duration(seconds * float64(time.Second))
}
