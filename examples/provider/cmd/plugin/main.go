// Command plugin runs the driver of this example for a manager in another process.
package main

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/examples/provider/example"
	"github.com/millwright-dev/millwright/provider"
)

func main() {
	var url string
	provider.Serve("example", func(context.Context, provider.Environment) (driver.Driver, error) {
		return example.New(url)
	}, provider.WithFlags(func(flags *pflag.FlagSet) {
		flags.StringVar(&url, "example-url", "http://127.0.0.1:7070", "URL of the cloud")
	}))
}
