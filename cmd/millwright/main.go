// Command millwright is all of Millwright in one program. "millwright help" lists what
// it can do.
package main

import (
	"os"

	"github.com/millwright-dev/millwright/internal/cli"
)

// The linker sets version, and in releases also archives, the checksums of the control plane and the guests.
var version, archives = "devel", ""

func main() {
	os.Exit(cli.Main(cli.Program{Version: version, Archives: archives, Name: os.Args[0], Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr}))
}
