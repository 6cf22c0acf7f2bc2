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
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

// noEffect is the usage of MCM's flags that have no effect in Millwright.
const noEffect = "no effect, accepted for compatibility with MCM"

// fixedTimeout is the reason why the flags have no effect with which MCM will lengthen the creation timeout of a
// MachineDeployment whose Machines fail to join.
const fixedTimeout = "the creation timeout of Machines does not grow"

// ignored holds MCM's flags that are accepted but have no effect.
type ignored struct {
	set  *pflag.FlagSet
	lock string
	// contentType is validated, as in MCM.
	contentType string
	logging     klogFlags
}

// klogFlags are the flags of klog and component-base whose values are validated, as these libraries do.
type klogFlags struct {
	threshold, alsoThreshold, modules, backtrace string
	textBuffer, jsonBuffer                       resource.QuantityValue
}

// add adds the flags to those of a command.
func (i *ignored) add(flags *pflag.FlagSet, half manager.Half) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("cloud-provider", "", noEffect)
	set.StringVar(&i.contentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", noEffect+"; custom resources use JSON, all others protobuf")
	set.Duration("controller-start-interval", 0, noEffect+"; all controllers start together")
	if half != manager.HalfMachines {
		set.Duration("machine-safety-overshooting-period", time.Minute, noEffect+"; the Machines of a MachineSet are counted in every reconcile")
		set.Int("machine-replace-cycle-count-threshold", 0, noEffect+"; "+fixedTimeout)
		set.Int("machine-creation-timeout-growth-percent", 0, noEffect+"; "+fixedTimeout)
	}
	set.AddFlagSet(i.logging.flags())
	i.set = set
	flags.AddFlagSet(set)
	flags.StringVar(&i.lock, "leader-elect-resource-lock", "leases", `type of the lock for leader election; only "leases" is supported`)
}

// flags returns flags with the names of those of klog and component-base, except --v and --logging-format. It does not
// use klog's own flag set, because that stores values in package variables.
func (l *klogFlags) flags() *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range []string{
		"add-dir-header", "alsologtostderr", "one-output", "skip-headers", "skip-log-headers",
		"log-json-split-stream", "log-text-split-stream",
	} {
		set.Bool(name, false, "")
	}
	set.Bool("logtostderr", true, "")
	set.Bool("legacy-stderr-threshold-behavior", true, "")
	set.String("log-dir", "", "")
	set.String("log-file", "", "")
	set.StringVar(&l.backtrace, "log-backtrace-at", ":0", "")
	set.StringVar(&l.modules, "vmodule", "", "")
	set.StringVar(&l.threshold, "stderrthreshold", "2", "")
	set.StringVar(&l.alsoThreshold, "alsologtostderrthreshold", "0", "")
	set.Var(&l.textBuffer, "log-text-info-buffer-size", "")
	set.Var(&l.jsonBuffer, "log-json-info-buffer-size", "")
	set.Uint64("log-file-max-size", 1800, "")
	set.Duration("log-flush-frequency", 5*time.Second, "")
	set.VisitAll(func(f *pflag.Flag) {
		f.Usage, f.Hidden = noEffect+"; all logs go to standard error", true
	})
	return set
}

// severities are klog's severity names. klog also accepts numbers.
var severities = []string{"INFO", "WARNING", "ERROR", "FATAL"}

// isSeverity reports whether klog accepts the text as a severity.
func isSeverity(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil || slices.Contains(severities, strings.ToUpper(text))
}

// isModules reports whether klog accepts the text for --vmodule: a list of file patterns with their verbosity.
func isModules(text string) bool {
	for module := range strings.SplitSeq(text, ",") {
		pattern, level, ok := strings.Cut(module, "=")
		verbosity, err := strconv.Atoi(level)
		if module != "" && (!ok || pattern == "" || err != nil || verbosity < 0) {
			return false
		}
	}
	return true
}

// isPosition reports whether klog accepts the text for --log-backtrace-at: a file and a line.
func isPosition(text string) bool {
	if text == "" || text == ":0" {
		return true
	}
	file, line, ok := strings.Cut(text, ":")
	number, err := strconv.Atoi(line)
	return ok && strings.Contains(file, ".") && err == nil && number > 0
}

// dashes normalizes flag names, so that underscores are accepted in place of dashes, as for klog's flags.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// problems adds an error for each invalid value.
func (i *ignored) problems(wrong *args.Problems) {
	wrong.If(i.lock != "leases", "--leader-elect-resource-lock: %q is not supported; use leases", i.lock)
	for flag, value := range map[string]string{"stderrthreshold": i.logging.threshold, "alsologtostderrthreshold": i.logging.alsoThreshold} {
		wrong.If(!isSeverity(value), "--%s: %q is neither a number nor one of %s", flag, value, strings.Join(severities, ", "))
	}
	wrong.If(!isModules(i.logging.modules), "--vmodule: %q is not a comma-separated list of PATTERN=NUMBER", i.logging.modules)
	wrong.If(!isPosition(i.logging.backtrace), "--log-backtrace-at: %q is not FILE.go:LINE", i.logging.backtrace)
	_, _, err := mime.ParseMediaType(i.contentType)
	wrong.If(err != nil, "--kube-api-content-type: %q is not a media type", i.contentType)
}

// log logs the flags that have no effect and were set to a value other than the default.
func (i *ignored) log(log logr.Logger) {
	var names []string
	i.set.VisitAll(func(f *pflag.Flag) {
		if value := f.Value.String(); value != f.DefValue {
			names = append(names, fmt.Sprintf("--%s=%s", f.Name, value))
		}
	})
	if len(names) > 0 {
		log.Info("ignoring MCM flags that have no effect", "flags", names)
	}
}
