// Command closure copies files of unpacked packages of Debian, with the libraries that they load, to a
// folder that becomes the root of a container image.
//
//	closure --from FOLDER --owners FILE --to FOLDER PATH...
//
// The folder --from holds the content of all packages. The file --owners has a line PACKAGE VERSION PATH for
// each of their files. Paths are relative to the roots. The packages that the copied files are from are
// printed, a line PACKAGE VERSION each, and their copyright files are copied too.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "closure:", err)
		os.Exit(1)
	}
}

// run copies what the arguments name, and prints the packages.
func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("closure", flag.ContinueOnError)
	from := flags.String("from", "", "folder with the content of the packages")
	owners := flags.String("owners", "", "file that says which package has which file")
	to := flags.String("to", "", "folder to copy to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *from == "" || *owners == "" || *to == "" || flags.NArg() == 0 {
		return errors.New("--from, --owners, --to and a path are required")
	}
	text, err := os.ReadFile(*owners)
	if err != nil {
		return err
	}
	of, err := parseOwners(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", *owners, err)
	}
	c := &closure{from: *from, to: *to, owners: of, copied: map[string]bool{}, packages: map[pkg]bool{}}
	for _, path := range flags.Args() {
		if err := c.add(path); err != nil {
			return err
		}
	}
	for _, p := range c.sorted() {
		if err := c.copyright(p); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(stdout, p.name, p.version); err != nil {
			return err
		}
	}
	return nil
}
