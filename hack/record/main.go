// Command record runs a command on a terminal and records its output as an animated SVG.
//
//	record --out FILE [--title TEXT] COMMAND [ARGUMENT...]
//
// Long pauses are shortened, and the last picture is shown for a while before the animation repeats.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/test/support/pty"
)

func main() {
	out := flag.String("out", "", "file to write")
	title := flag.String("title", "", "text to show as the typed command; defaults to the command")
	columns := flag.Int("columns", 100, "columns of the terminal")
	rows := flag.Int("rows", 30, "rows of the terminal")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "record: --out and a command are required")
		os.Exit(2)
	}
	if err := run(*out, *title, *columns, *rows, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(out, title string, columns, rows int, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if title == "" {
		title = strings.Join(args, " ")
	}
	screen := newScreen(columns, rows)
	screen.write("$ " + title + "\n")
	film := &film{}
	film.add(time.Now(), screen.lines())
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	if err := pty.Run(command, columns, rows, func(text string) {
		screen.write(text)
		film.add(time.Now(), screen.lines())
		fmt.Print(text)
	}); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	picture := film.svg(columns, rows)
	const most = 300_000 // maximum size for a page, in bytes
	if len(picture) > most {
		return fmt.Errorf("the recording has %d bytes, more than the maximum of %d", len(picture), most)
	}
	return os.WriteFile(out, []byte(picture), 0o644)
}
