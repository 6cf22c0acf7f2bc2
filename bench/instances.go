package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim"
)

// simDirectory is the directory in which the driver sim stores its instances.
func (w *setup) simDirectory() string { return filepath.Join(w.dir, "sim") }

// checkInstances returns an error if a Machine ever had two instances at the same time, or if instances and Machines do
// not correspond. It returns nil if the manager does not use the directory.
func (w *setup) checkInstances() error {
	machines := w.tracker.keys()
	var wrong []error
	for _, name := range w.load.namespaces() {
		dir := w.simDirectory()
		if w.load.clusters > 0 {
			dir = filepath.Join(dir, name) // the fleet separates its clusters
		}
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		histories, err := readHistories(dir)
		if err != nil {
			return err
		}
		wrong = append(wrong, judgeInstances(histories, name, machines))
	}
	return errors.Join(wrong...)
}

func readHistories(dir string) (histories map[string]sim.History, err error) {
	cloud, err := sim.OpenCloud(dir, sim.CloudOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cloud.Close()) }()
	journal, err := cloud.Journal()
	if err != nil {
		return nil, fmt.Errorf("cannot read the journal of the simulated provider: %w", err)
	}
	return sim.Histories(journal), nil
}

// judgeInstances returns an error for each Machine of a namespace that had several instances at the same time, or whose
// instance outlived it.
func judgeInstances(histories map[string]sim.History, namespace string, machines map[client.ObjectKey]bool) error {
	var wrong []error
	known := map[string]bool{}
	for key := range machines {
		known[key.String()] = key.Namespace == namespace
	}
	for _, machine := range slices.Sorted(maps.Keys(histories)) {
		switch h := histories[machine]; {
		case h.MostAtOnce > 1:
			wrong = append(wrong, fmt.Errorf("the Machine %s had %d instances at the same time", machine, h.MostAtOnce))
		case h.Left > 0 && !known[machine]:
			wrong = append(wrong, fmt.Errorf("an instance of Machine %s exists, but the Machine does not", machine))
		}
		if histories[machine].Left > 0 {
			delete(known, machine)
		}
	}
	for _, machine := range slices.Sorted(maps.Keys(known)) {
		if known[machine] {
			wrong = append(wrong, fmt.Errorf("the Machine %s has no instance", machine))
		}
	}
	return errors.Join(wrong...)
}
