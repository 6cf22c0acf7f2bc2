package manager

import (
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

// noEffect is in the usage of flags that configure nothing here.
const noEffect = "no effect, accepted for compatibility with MCM"

// ignored are the flags of MCM that configure nothing here.
type ignored struct {
	set  *pflag.FlagSet
	lock string
	// contentType is checked, as in MCM.
	contentType string
	threshold   string
}

// add adds them to those of a command.
func (i *ignored) add(flags *pflag.FlagSet, half manager.Half) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("cloud-provider", "", noEffect)
	set.StringVar(&i.contentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", noEffect+": JSON for custom resources, protobuf for all others")
	set.Duration("controller-start-interval", 0, noEffect+": controllers start together")
	if half != manager.HalfMachines {
		set.Duration("machine-safety-overshooting-period", time.Minute, noEffect+": the Machines of a MachineSet are counted in every reconcile")
	}
	set.AddFlagSet(newLogging(&i.threshold))
	i.set = set
	flags.AddFlagSet(set)
	flags.StringVar(&i.lock, "leader-elect-resource-lock", "leases", `type of the locks of the leader election; only "leases"`)
}

// newLogging returns the flags of klog and component-base, but for --v and --logging-format. They are
// not klog's own, which keeps their values in variables of its package.
func newLogging(threshold *string) *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range []string{
		"add-dir-header", "alsologtostderr", "one-output", "skip-headers", "skip-log-headers",
		"log-json-split-stream", "log-text-split-stream",
	} {
		set.Bool(name, false, "")
	}
	set.Bool("logtostderr", true, "")
	set.Bool("legacy-stderr-threshold-behavior", true, "")
	for name, value := range map[string]string{
		"log-backtrace-at": ":0", "log-dir": "", "log-file": "", "vmodule": "", "alsologtostderrthreshold": "0",
		"log-json-info-buffer-size": "0", "log-text-info-buffer-size": "0",
	} {
		set.String(name, value, "")
	}
	set.StringVar(threshold, "stderrthreshold", "2", "")
	set.Uint64("log-file-max-size", 1800, "")
	set.Duration("log-flush-frequency", 5*time.Second, "")
	set.VisitAll(func(f *pflag.Flag) {
		f.Usage, f.Hidden = noEffect+": all logs go to standard error", true
	})
	return set
}

// severities are klog's, which it also knows by their number.
var severities = []string{"INFO", "WARNING", "ERROR", "FATAL"}

// isSeverity reports whether klog would take it.
func isSeverity(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil || slices.Contains(severities, strings.ToUpper(text))
}

// dashes has flags be spelt with underscores too, as klog's are.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// problems adds those with the values.
func (i *ignored) problems(wrong *args.Problems) {
	wrong.If(i.lock != "leases", "--leader-elect-resource-lock: %q is not leases, the only type of lock", i.lock)
	wrong.If(!isSeverity(i.threshold), "--stderrthreshold: %q is neither a number nor one of %s", i.threshold, strings.Join(severities, ", "))
	_, _, err := mime.ParseMediaType(i.contentType)
	wrong.If(err != nil, "--kube-api-content-type: %q is not a media type", i.contentType)
}

// say logs the flags that have other values than the default and no effect.
func (i *ignored) say(log logr.Logger) {
	var given []string
	i.set.VisitAll(func(f *pflag.Flag) {
		if value := f.Value.String(); value != f.DefValue {
			given = append(given, fmt.Sprintf("--%s=%s", f.Name, value))
		}
	})
	if len(given) > 0 {
		log.Info("flags of MCM that have no effect here", "flags", given)
	}
}
