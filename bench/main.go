// Command bench measures the requests, time, CPU and memory of a machine manager.
//
// It starts a control plane (kube-apiserver and etcd without fsync, no controller manager), runs a manager as a
// separate process, and runs phases: by default, it scales a MachineDeployment up, updates it, leaves it idle, and
// scales it down. Then it prints the cost of each phase. It fails if the manager violates a bound at any moment.
// With --api capi, it measures Machines of Cluster API, and runs the core of Cluster API next to the manager.
// docs/contributing/performance.md explains the phases, what is counted, and how to measure another manager of the same
// API.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.SetLogger(logr.Discard()) // discard logs of libraries
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(ctx, *o, os.Stdout, os.Stderr)
	}
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are all settings of a benchmark.
type options struct {
	// api is the name of the measured API.
	api     string
	load    load
	manager managerOptions
	// phases are the names of the phases, in order.
	phases []string
	// dir is the directory for all files. If empty, a temporary directory is used and removed afterwards.
	dir string
	// json is the file for the result. If empty, no file is written.
	json string
	// replay repeats the writes of each phase without a manager.
	replay bool
	// check returns an error if the number of requests exceeds the budget.
	check bool
	// timeout of each phase.
	timeout time.Duration
	// Constants of the program that its tests reduce.
	limitRequests, profileSeconds int
	quietFor                      time.Duration
}

// load is the work of the manager.
type load struct {
	machines int
	// pools is the number of MachineDeployments among which the Machines are divided: of each cluster, if there are
	// several.
	pools int
	// clusters is the number of clusters that a fleet serves, or 0 for a single manager. replicas is the number of
	// processes of the fleet.
	clusters, replicas int
	// podsPerMachine is the number of pods on the node of each Machine that is drained, volumesPerMachine of which have a
	// volume.
	podsPerMachine, volumesPerMachine int
	// pods is the number of pods on nodes without a Machine.
	pods int
	// idle is the duration of the phase without work.
	idle               time.Duration
	surge, unavailable string
	// healthTimeout is the time after which the manager replaces a Machine whose node is not ready.
	healthTimeout time.Duration
	// replacements is the number of Machines that the phase "replace" waits for.
	replacements int
	// providerSpec of the classes. If empty, it consists of latency and joinDelay.
	providerSpec       string
	latency, joinDelay time.Duration
}

// managerOptions configure the manager.
type managerOptions struct {
	// command is a shell command line with placeholders.
	command    string
	millwright string
	// environment of the process. If nil, it is inherited.
	environment []string
	qps, burst  int
	// profiles is the directory for profiles. If empty, none are taken.
	profiles string
}

// defaultCommand runs this project's manager without heartbeats of simulated nodes and without leader election,
// because it might lose the lease under full load.
const defaultCommand = "exec {millwright} manager --driver sim --sim-heartbeat 0 --leader-elect=false" +
	" --sim-dir {sim} --machine-health-timeout {health-timeout}" +
	" --control-kubeconfig {kubeconfig} --target-kubeconfig {kubeconfig} --namespace {namespace}" +
	" --kube-api-qps {qps} --kube-api-burst {burst} --address 127.0.0.1 --port {port} --profiling"

// fleetCommand runs the same with a fleet. Its clusters always elect leaders.
const fleetCommand = "{millwright} fleet --driver sim --sim-heartbeat 0" +
	" --sim-dir {sim} --machine-health-timeout {health-timeout}" +
	" --control-kubeconfig {kubeconfig} --namespace {namespace}" +
	" --kube-api-qps {qps} --kube-api-burst {burst} --address 127.0.0.1 --port {port} --profiling"

// fleetOf returns a shell command line that runs replicas of a fleet. It exits when the last replica exits, and only this
// replica can be profiled. If another replica fails, all are killed.
func fleetOf(replicas int) string {
	other := "{ " + strings.ReplaceAll(fleetCommand, "{port}", "0") + " || kill -KILL 0; } & "
	return strings.Repeat(other, replicas-1) + "exec " + fleetCommand
}

func (o *options) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	flags.StringVar(&o.api, "api", mcm, "API of the Machines, as in --apis of millwright manager: "+apiNames()+"; with "+capi+", requests of Cluster API's core, which creates the Machines, are not counted")
	flags.StringSliceVar(&o.phases, "phases", defaultPhases, "comma-separated phases, in order: "+strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	flags.IntVar(&o.load.machines, "machines", 100, "number of Machines")
	flags.IntVar(&o.load.pools, "pools", 1, "number of MachineDeployments among which the Machines are divided")
	flags.IntVar(&o.load.clusters, "clusters", 0, "number of clusters among which the Machines are divided, and which millwright fleet serves; --pools is for each of them; 0 for millwright manager")
	flags.IntVar(&o.load.replicas, "replicas", 1, "number of processes of millwright fleet that divide the clusters among themselves")
	flags.IntVar(&o.load.podsPerMachine, "pods-per-machine", 10, "number of pods on each node that the phase "+drained+" evicts")
	flags.IntVar(&o.load.volumesPerMachine, "volumes-per-machine", 2, "number of these pods that have a volume")
	flags.BoolVar(&o.replay, "replay", false, "afterwards, repeat the writes of each phase with a plain client, to measure how long the API server alone needs for them")
	flags.IntVar(&o.load.pods, "pods", 0, "number of pods that exist in the target cluster before the measurement, on nodes without a Machine")
	flags.DurationVar(&o.load.idle, "idle", 20*time.Second, "duration of the phase without work")
	flags.StringVar(&o.load.surge, "surge", "20%", "maxSurge of the rolling update")
	flags.StringVar(&o.load.unavailable, "unavailable", "20%", "maxUnavailable of the rolling update")
	flags.DurationVar(&o.load.healthTimeout, "health-timeout", timeouts.DefaultHealth, "time after which the manager replaces a Machine whose node is not ready; the phase "+replace+" waits for it")
	flags.IntVar(&o.load.replacements, "replacements", 5, "number of Machines that are replaced in the phase "+replace)
	flags.DurationVar(&o.load.latency, "latency", 0, "time that each call to the simulated provider takes")
	flags.DurationVar(&o.load.joinDelay, "join-delay", 0, "time from a VM's creation until its node joins")
	flags.StringVar(&o.load.providerSpec, "provider-spec", "", "providerSpec of the classes, as JSON, for a driver that does not support --latency and --join-delay")
	flags.StringVar(&o.manager.command, "manager-command", defaultCommand, "shell command line that runs the manager; {kubeconfig}, {target-kubeconfig} (for nodes), {namespace}, {qps}, {burst}, {port} (a free port), {sim} (a directory), {health-timeout} and {millwright} are replaced")
	flags.StringVar(&o.manager.millwright, "millwright", "bin/millwright", "program that replaces {millwright}")
	flags.IntVar(&o.manager.qps, "qps", 1000, "maximum number of requests per second by the manager")
	flags.IntVar(&o.manager.burst, "burst", 2000, "maximum burst of requests by the manager")
	flags.StringVar(&o.manager.profiles, "profiles", "", "directory for profiles of the manager, taken from {port}")
	flags.StringVar(&o.dir, "keep", "", "directory for the control plane and all logs, which is not removed; it must be empty or not exist")
	flags.StringVar(&o.json, "json", "", "file to write the result to")
	flags.BoolVar(&o.check, "check", false, "fail if the number of requests exceeds the budget")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Minute, "timeout of a phase")
	return flags
}

func (o *options) validate() error {
	switch {
	case o.load.machines < 1:
		return errors.New("--machines: must be at least 1")
	case o.load.clusters < 0:
		return errors.New("--clusters: must not be negative")
	case o.load.pools < 1 || o.load.pools*max(1, o.load.clusters) > o.load.machines:
		return errors.New("--pools: must be at least 1, and each pool of each cluster needs a Machine")
	case o.load.pods < 0:
		return errors.New("--pods: must not be negative")
	case o.manager.qps < 1 || o.manager.burst < 1:
		return errors.New("--qps, --burst: must be at least 1")
	case o.load.idle < 0 || o.load.latency < 0 || o.load.joinDelay < 0 || o.timeout <= 0:
		return errors.New("--idle, --latency, --join-delay, --timeout: must not be negative")
	}
	return errors.Join(checkPhases(o.phases), o.validateHealth(), o.validateTargets(), o.validateAPI())
}

// validateTargets checks the settings of pods and clusters.
func (o *options) validateTargets() error {
	switch {
	case o.load.podsPerMachine < 1 || o.load.podsPerMachine > podsPerNode:
		return fmt.Errorf("--pods-per-machine: must be between 1 and %d", podsPerNode)
	case o.load.volumesPerMachine < 0 || o.load.volumesPerMachine > o.load.podsPerMachine:
		return errors.New("--volumes-per-machine: must not be negative or greater than --pods-per-machine")
	case o.load.clusters > 0 && (o.load.pods > 0 || slices.Contains(o.phases, drained)):
		return fmt.Errorf("--clusters: cannot be used with --pods and the phase %s, because all clusters would have these pods", drained)
	case o.load.replicas < 1 || o.load.replicas > max(1, o.load.clusters):
		return errors.New("--replicas: must be at least 1 and at most --clusters")
	case o.load.clusters > 0 && o.load.providerSpec != "":
		return errors.New("--clusters: cannot be used with --provider-spec, which cannot separate the nodes of the clusters")
	}
	return nil
}

// validateAPI checks that the API exists and supports the other settings.
func (o *options) validateAPI() error {
	a, exists := apis[o.api]
	if !exists {
		return fmt.Errorf("--api: unknown API %q; choose from %s", o.api, apiNames())
	}
	if a.phases == nil {
		return nil
	}
	for _, name := range o.phases {
		if !slices.Contains(a.phases, name) {
			return fmt.Errorf("--api: %s does not support the phase %s; choose from %s", o.api, name, strings.Join(a.phases, ", "))
		}
	}
	if o.load.clusters > 0 || o.load.pods > 0 || o.replay {
		return fmt.Errorf("--api: %s cannot be combined with --clusters, --pods or --replay", o.api)
	}
	return nil
}

// validateHealth checks that Machines are replaced in the phase for it, and only there.
func (o *options) validateHealth() error {
	switch {
	case o.load.healthTimeout <= 0:
		return errors.New("--health-timeout: must be positive")
	case slices.Contains(o.phases, replace) && o.load.healthTimeout >= o.timeout:
		return fmt.Errorf("--health-timeout: must be less than --timeout for the phase %s", replace)
	case slices.Contains(o.phases, replace) && slices.Contains(o.phases, notReady):
		return fmt.Errorf("--phases: %s and %s need different values of --health-timeout; run them separately", notReady, replace)
	case slices.Contains(o.phases, replace) && (o.load.replacements < 1 || o.load.replacements > o.load.machines):
		return errors.New("--replacements: must be at least 1 and at most the number of Machines")
	}
	return nil
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{limitRequests: limitRequests, profileSeconds: profileSeconds, quietFor: quietFor}
	flags := o.flags()
	flags.SetOutput(stderr)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; this command accepts only flags", flags.Arg(0))
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if !flags.Changed("manager-command") {
		o.manager.command = apis[o.api].command
		if o.load.clusters > 0 {
			o.manager.command = fleetOf(o.load.replicas)
		}
	}
	return o, nil
}

// run runs the benchmark and prints the result.
func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	result, err := measureAll(ctx, o, logger(stderr))
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, result.table())
	if o.json != "" {
		if err := result.write(o.json); err != nil {
			return err
		}
	}
	if over := result.overBudget(); o.check && over != nil {
		return over
	}
	return nil
}

// logger prints messages with the time since the start.
func logger(out io.Writer) func(string, ...any) {
	began := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(out, "%6.1fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}

// measureAll runs the whole benchmark in a directory.
func measureAll(ctx context.Context, o options, log func(string, ...any)) (result *result, err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "millwright-bench-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	} else if o.dir, err = emptyDir(o.dir); err != nil {
		return nil, fmt.Errorf("--keep: %w", err)
	}
	w, err := newSetup(ctx, o, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.end()) }()
	return w.measure(ctx)
}

// emptyDir creates a directory if it does not exist, and returns an error if it is not empty.
func emptyDir(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(path)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("directory %s is not empty", path)
	}
	return path, err
}
