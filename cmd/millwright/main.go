// Command millwright is all of Millwright in one program. "millwright help" lists what
// it can do.
package main

import (
	"os"

	"github.com/millwright-dev/millwright/internal/cli"
)

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(cli.Main(cli.Program{Version: version, Name: os.Args[0], Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr}))
}
