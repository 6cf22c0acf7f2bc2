// Command site turns the Markdown pages of docs into the content of a Hugo site, and checks the site that Hugo builds.
// "make docs" runs it before and after Hugo.
//
//	site prepare DOCS DIRECTORY
//	site check SITE
package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == "prepare":
		return prepare(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == "check":
		return check(os.DirFS(args[1]))
	}
	return fmt.Errorf("unexpected arguments %q; use prepare DOCS DIRECTORY, or check SITE", args)
}
