package args

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// sectionKey is the annotation of a flag with the section of the help that lists it.
const sectionKey = "millwright.dev/section"

// General is the section of flags that fit into no other, such as --help.
const General = "general"

// Section assigns the flags that have no section yet to one. Call it after the flags were added. Sections appear in the
// order of their first call.
func Section(flags *pflag.FlagSet, name string) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Annotations[sectionKey] == nil {
			_ = flags.SetAnnotation(flag.Name, sectionKey, []string{name}) // the flag exists
		}
	})
}

// Sections returns the flags of a command by section, or no sections if its flags have none.
func Sections(cmd *cobra.Command) cliflag.NamedFlagSets {
	flags := cmd.Flags()
	all, has := cliflag.NamedFlagSets{NormalizeNameFunc: flags.GetNormalizeFunc()}, false
	defer func(sorted bool) { flags.SortFlags = sorted }(flags.SortFlags)
	flags.SortFlags = false // in the order in which they were added, as are the sections
	flags.VisitAll(func(flag *pflag.Flag) {
		section := General
		if flag.Hidden {
			return
		}
		if names := flag.Annotations[sectionKey]; len(names) > 0 {
			section, has = names[0], true
		}
		all.FlagSet(section).AddFlag(flag)
	})
	if !has {
		return cliflag.NamedFlagSets{}
	}
	return all
}
