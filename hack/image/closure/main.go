// Command closure copies files of unpacked Debian packages, with the libraries that they load, to a directory that
// becomes the root of a container image.
//
//	closure --from DIRECTORY --owners FILE --to DIRECTORY PATH...
//
// The directory --from contains the content of all packages. The file --owners has a line PACKAGE VERSION PATH for
// each of their files. Paths are relative to the roots. The command prints the packages of the copied files, one
// line PACKAGE VERSION each, and also copies their copyright files.
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

// run copies the files that the arguments name, and prints the packages.
func run(args []string, stdout io.Writer) error {
	c, paths, err := parse(args)
	if err != nil {
		return err
	}
	for _, path := range paths {
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

// parse parses the arguments.
func parse(args []string) (*closure, []string, error) {
	flags := flag.NewFlagSet("closure", flag.ContinueOnError)
	from := flags.String("from", "", "directory with the content of the packages")
	owners := flags.String("owners", "", "file that lists the package of each file")
	to := flags.String("to", "", "directory to copy to")
	if err := flags.Parse(args); err != nil {
		return nil, nil, err
	}
	if *from == "" || *owners == "" || *to == "" || flags.NArg() == 0 {
		return nil, nil, errors.New("--from, --owners, --to and a path are required")
	}
	text, err := os.ReadFile(*owners)
	if err != nil {
		return nil, nil, err
	}
	of, err := parseOwners(string(text))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", *owners, err)
	}
	return &closure{from: *from, to: *to, owners: of, copied: map[string]bool{}, packages: map[pkg]bool{}}, flags.Args(), nil
}
