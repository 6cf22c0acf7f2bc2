package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

// rolloutStatusFlags say how long to watch a rollout, and which.
type rolloutStatusFlags struct {
	rolloutFlags

	watch    bool
	timeout  time.Duration
	revision int64
}

// rolloutBeat is after what time to look whether a manager is still there: when it is not,
// nothing changes.
const rolloutBeat = 5 * time.Second

func newRolloutStatusCommand() *cobra.Command {
	flags := &rolloutStatusFlags{}
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Watch a rollout until it is over",
		Long: `Watch a rollout until all machines are of the newest template and can be used.

On a terminal it shows the machine sets, what their machines do, and what the rollout waits
for; elsewhere it prints a line for each change. The exit status is 0 when the rollout is
over, and 1 if it makes no progress within its deadline, if --timeout passes, or if there is
no such MachineDeployment (any more).`,
		Example: `  millwright rollout status pool --timeout 30m
  millwright rollout status mcd/pool --watch=false`,
		Args: oneDeployment,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(map[string]int64{"timeout": int64(flags.timeout), "revision": flags.revision}); err != nil {
				return usage(cmd, err)
			}
			s, err := flags.open(args)
			if err != nil {
				return err
			}
			return flags.run(cmd.Context(), s, cmd.OutOrStdout())
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVarP(&flags.watch, "watch", "w", true, "watch until the rollout is over; otherwise say how it goes and end")
	cmd.Flags().DurationVar(&flags.timeout, "timeout", 0, "how long to watch at most; 0 is for ever")
	cmd.Flags().Int64Var(&flags.revision, "revision", 0, "fail if another revision than this is rolled out; 0 is any")
	return cmd
}

func (f *rolloutStatusFlags) run(ctx context.Context, s subject, out io.Writer) error {
	w := &rolloutWatch{flags: f, out: out, begin: time.Now()}
	follower := rollout.Follower{Client: s.client, Link: s.link, Pace: time.Second, Beat: rolloutBeat, Around: rolloutBeat}
	if isTerminal(out) {
		w.screen = &rollout.Screen{Out: out, Size: func() (int, int) { return terminalSize(out) }}
		follower.Pace, follower.Beat = 100*time.Millisecond, time.Second
	}
	within, cancel := ctx, context.CancelFunc(func() {})
	if f.timeout > 0 {
		within, cancel = context.WithTimeout(ctx, f.timeout)
	}
	defer cancel()
	err := follower.Follow(within, s.key, w.see)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("not watched any more; whether the rollout of machine deployment %s goes on does not depend on that%s", s.key, w.state())
	case within.Err() != nil && errors.Is(err, within.Err()):
		return fmt.Errorf("machine deployment %s was not rolled out within %s%s", s.key, f.timeout, w.state())
	}
	return err
}

// terminalSize is how many columns and rows a terminal has; zeroes if it does not say.
func terminalSize(out io.Writer) (columns, rows int) {
	if file, ok := out.(interface{ Fd() uintptr }); ok {
		columns, rows, _ = term.GetSize(int(file.Fd()))
	}
	return columns, rows
}

// rolloutWatch shows how a rollout goes.
type rolloutWatch struct {
	flags *rolloutStatusFlags
	out   io.Writer
	begin time.Time
	// screen to draw on; nil if nobody watches.
	screen *rollout.Screen
	last   rollout.Status
	// printed is the last line, where there is no screen.
	printed string
}

// see shows a state, and reports whether it is the last one to show.
func (w *rolloutWatch) see(facts rollout.Facts) (enough bool, err error) {
	now := time.Now()
	w.last = rollout.Look(facts, now)
	if err := w.show(now); err != nil {
		return false, err
	}
	s, elapsed := w.last, duration.HumanDuration(now.Sub(w.begin))
	if want := w.flags.revision; want != 0 && s.Observed && s.Revision != 0 && s.Revision != want {
		return false, fmt.Errorf("machine deployment %s rolls out revision %d, not %d", s.Key, s.Revision, want)
	}
	switch s.Outcome {
	case rollout.Complete:
		_, err := fmt.Fprintf(w.out, "machine deployment %s successfully rolled out: revision %d, %s, after %s\n", s.Key, s.Revision, countOf(int(s.Wanted), "machine"), elapsed)
		return true, err
	case rollout.Late:
		return false, fmt.Errorf("machine deployment %s exceeded its progress deadline of %s%s", s.Key, duration.HumanDuration(s.Limit), w.state())
	}
	return !w.flags.watch, nil
}

func (w *rolloutWatch) show(now time.Time) error {
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

// state is the last state in short, to put behind what went wrong.
func (w *rolloutWatch) state() string {
	if w.last.Outcome == "" {
		return ""
	}
	return ": " + rollout.Brief(w.last)
}
