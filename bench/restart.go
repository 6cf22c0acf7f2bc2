package main

import (
	"context"
	"time"
)

// restart stops the manager, starts it again, and adds a Machine to the first pool immediately. It measures the time
// until the manager has created that Machine, and what the start costs.
func (w *setup) restart() phase {
	first := w.pools[0]
	oneMore := func(p pool) int {
		if p == first {
			return p.machines + 1
		}
		return p.machines
	}
	return phase{
		prepare: func(context.Context) error { return w.stop() },
		starts:  true,
		do: func(ctx context.Context) error {
			began := time.Now()
			if err := w.start(); err != nil {
				return err
			}
			ctx, stop := w.manager.alive(ctx)
			defer stop()
			return causeOf(ctx, w.actsWithin(ctx, began, oneMore))
		},
		restore: func(ctx context.Context) error {
			ctx, stop := w.manager.alive(ctx)
			defer stop()
			return causeOf(ctx, w.scale(ctx, all))
		},
		bounds: func(p pool) bounds { return bounds{most: oneMore(p), least: p.machines} },
	}
}

// actsWithin scales the first pool up by one Machine, records when the manager has carried that out, and waits until the
// pool is complete.
func (w *setup) actsWithin(ctx context.Context, began time.Time, machines func(pool) int) error {
	first := w.pools[0]
	if err := w.patch(ctx, first, replicas(machines(first))); err != nil {
		return err
	}
	if err := w.api.acted(w, ctx, machines(first)); err != nil {
		return err
	}
	w.acted = time.Since(began)
	return w.settled(ctx, machines)
}

// awaitCreation waits until the first pool has the given number of Machines, which the manager creates.
func (w *setup) awaitCreation(ctx context.Context, machines int) error {
	return w.tracker.await(ctx, func() bool { return w.tracker.census(w.pools[0]).existing == machines })
}
