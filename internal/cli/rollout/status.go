package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// managerCheckInterval is the interval of the check that a manager is running. A stopped manager causes no events.
const managerCheckInterval = 5 * time.Second

func newStatus() *cobra.Command {
	w := &statusWatch{}
	cmd := add(&cobra.Command{
		Use:   "status NAME",
		Short: "Show the status of a rollout until it is complete",
		Long: `Show the status of a rollout until all machines are up to date and available.

On a terminal, the command shows the MachineSets, the state of their machines, and what the
rollout waits for. Otherwise it prints a line for each change. The exit status is 0 if the
rollout completes, and 1 if it exceeds its progress deadline or --timeout, or if the
MachineDeployment does not exist.`,
		Example: `  millwright rollout status pool --timeout 30m
  millwright rollout status mcd/pool --watch=false`,
	}, func(cmd *cobra.Command, d deployment) error {
		w.out, w.begin = cmd.OutOrStdout(), time.Now()
		return w.run(cmd.Context(), d)
	})
	cmd.Flags().BoolVarP(&w.watch, "watch", "w", true, "watch the status of the rollout until it is complete")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "how long to watch; 0 for no limit")
	cmd.Flags().Int64Var(&w.revision, "revision", 0, "fail if a different revision is rolled out; 0 for any revision")
	return cmd
}

// statusWatch shows the progress of a rollout.
type statusWatch struct {
	// Flags.
	watch    bool
	timeout  time.Duration
	revision int64

	out   io.Writer
	begin time.Time
	// screen is the terminal to draw on, or nil if the output is not a terminal.
	screen *terminal.Screen
	last   rollout.Status
	// printed is the last line printed. It is used without a screen only.
	printed string
}

func (w *statusWatch) run(ctx context.Context, d deployment) error {
	d.Pace, d.Beat, d.Surroundings = time.Second, managerCheckInterval, managerCheckInterval
	if w.screen = terminal.Open(w.out); w.screen != nil {
		d.Pace, d.Beat = 100*time.Millisecond, time.Second
	}
	within, cancel := ctx, context.CancelFunc(func() {})
	if w.timeout > 0 {
		within, cancel = context.WithTimeout(ctx, w.timeout)
	}
	defer cancel()
	err := d.Follow(within, d.key, w.update)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped watching; the rollout of machine deployment %s continues%s", d.key, w.state())
	case within.Err() != nil && errors.Is(err, within.Err()):
		return fmt.Errorf("machine deployment %s was not rolled out within %s%s", d.key, w.timeout, w.state())
	}
	return err
}

// update shows the current state, and reports whether the watch is complete.
func (w *statusWatch) update(facts rollout.Facts) (enough bool, err error) {
	now := time.Now()
	w.last = rollout.StatusOf(facts, now)
	if err := w.show(now); err != nil {
		return false, err
	}
	s, elapsed := w.last, duration.HumanDuration(now.Sub(w.begin))
	if want := w.revision; want != 0 && s.Observed && s.Revision != 0 && s.Revision != want {
		return false, fmt.Errorf("machine deployment %s is rolling out revision %d, not %d", s.Key, s.Revision, want)
	}
	switch s.Outcome {
	case rollout.Complete:
		_, err := fmt.Fprintf(w.out, "machine deployment %s successfully rolled out: revision %d, %s, after %s\n", s.Key, s.Revision, messages.Machines(s.Desired), elapsed)
		return true, err
	case rollout.Late:
		return false, fmt.Errorf("machine deployment %s exceeded its progress deadline of %s%s", s.Key, duration.HumanDuration(s.Limit), w.state())
	}
	return !w.watch, nil
}

func (w *statusWatch) show(now time.Time) error {
	if w.screen != nil {
		return w.screen.Draw(rollout.View(w.last, now, now.Sub(w.begin)))
	}
	line := rollout.Line(w.last)
	if line == w.printed || w.last.Outcome == rollout.Complete {
		return nil
	}
	w.printed = line
	_, err := fmt.Fprintln(w.out, line)
	return err
}

// state returns a summary of the last state, as the end of an error message.
func (w *statusWatch) state() string {
	if w.last.Outcome == "" {
		return ""
	}
	return ": " + rollout.Brief(w.last)
}
