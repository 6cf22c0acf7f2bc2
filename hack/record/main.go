// Command record runs a command on a terminal and draws what it shows as an animated SVG.
//
//	record --out FILE [--title TEXT] COMMAND [ARGUMENT...]
//
// Long pauses are shortened, and the last picture stays for a while before the first comes
// again.
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

	"golang.org/x/sys/unix"
)

func main() {
	out := flag.String("out", "", "file to write")
	title := flag.String("title", "", "what is shown as typed; empty for the command itself")
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
	if err := onTerminal(command, columns, rows, func(text string) {
		screen.write(text)
		film.add(time.Now(), screen.lines())
		fmt.Print(text)
	}); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	picture := film.svg(columns, rows)
	const most = 300_000 // bytes that a page may cost
	if len(picture) > most {
		return fmt.Errorf("the recording has %d bytes, more than %d", len(picture), most)
	}
	return os.WriteFile(out, []byte(picture), 0o644)
}

// onTerminal runs a command on a new terminal, and calls printed with each piece of its output.
func onTerminal(command *exec.Cmd, columns, rows int, printed func(text string)) error {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer terminal.Close() // nothing was written to a file
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		return err
	}
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = side, side
	if err := command.Start(); err != nil {
		return err
	}
	if err := side.Close(); err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := terminal.Read(buffer)
		printed(string(buffer[:n]))
		if err != nil { // the command has ended
			return command.Wait()
		}
	}
}
