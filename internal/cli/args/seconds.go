package args

import (
	"strconv"

	"github.com/spf13/pflag"
)

// BareSeconds makes all duration flags also accept a number without a unit, in seconds.
func BareSeconds(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if _, already := flag.Value.(seconds); !already && flag.Value.Type() == "duration" {
			flag.Value = seconds{flag.Value}
		}
	})
}

// seconds is a duration.
type seconds struct{ pflag.Value }

func (s seconds) Set(text string) error {
	err := s.Value.Set(text)
	if err == nil {
		return nil
	}
	if _, notNumber := strconv.ParseFloat(text, 64); notNumber != nil || s.Value.Set(text+"s") != nil {
		return err
	}
	return nil
}
