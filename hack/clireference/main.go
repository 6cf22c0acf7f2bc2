// Command clireference writes the reference of millwright's commands to a directory: with -man as manual pages, otherwise
// as Markdown, one page for each group of commands.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/millwright-dev/millwright/internal/cli"
)

func main() {
	man := flag.Bool("man", false, "write manual pages")
	flag.Parse()
	if err := run(*man, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "clireference: %v\n", err)
		os.Exit(1)
	}
}

func run(man bool, arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("expected one argument, the directory of the pages")
	}
	dir := arguments[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := cli.Root("")
	root.DisableAutoGenTag = true
	root.SetOut(io.Discard) // otherwise, the width of a terminal would determine where lines break
	if man {
		// The date is that of SOURCE_DATE_EPOCH, or the current one.
		return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Millwright", Manual: "Millwright"}, dir)
	}
	return pages(root, dir)
}

const generated = "<!-- Generated from the help of the commands by \"make generate\". -->\n\n"

// pages writes a page for each group of commands, and an index.
func pages(root *cobra.Command, dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return err
	}
	for _, page := range old {
		if err := os.Remove(page); err != nil {
			return err
		}
	}
	index := generated + "# Command-line reference\n\nThe output of `millwright help` for each command. [Command line](../command-line.md) describes what they have in common.\n"
	for _, group := range root.Groups() {
		title := strings.TrimSuffix(group.Title, ":")
		name := strings.ReplaceAll(strings.ToLower(title), " ", "-") + ".md"
		page, commands := generated+"# "+title+"\n", ""
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID && cmd.IsAvailableCommand() {
				commands += fmt.Sprintf("* [`%s`](%s#%s): %s\n", cmd.CommandPath(), name, strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
				page += helpOf(cmd)
			}
		}
		index += "\n## " + title + "\n\n" + commands
		if err := os.WriteFile(filepath.Join(dir, name), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(index), 0o644)
}

// helpOf returns the help of a command and of those below it.
func helpOf(cmd *cobra.Command) string {
	var help bytes.Buffer
	cmd.InitDefaultHelpFlag()
	cmd.SetOut(&help)
	_ = cmd.Help() // writing to memory cannot fail
	text := fmt.Sprintf("\n## %s\n\n```\n%s\n```\n", cmd.CommandPath(), strings.TrimRight(help.String(), "\n"))
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			text += helpOf(child)
		}
	}
	return text
}
