package main

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a Debian package.
type pkg struct{ name, version string }

// closure is the state of a copy.
type closure struct {
	from, to string
	owners   map[string]pkg
	copied   map[string]bool
	packages map[pkg]bool
}

// parseOwners returns the package of each path.
func parseOwners(text string) (map[string]pkg, error) {
	owners := map[string]pkg{}
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("invalid line %q; expected PACKAGE VERSION PATH", line)
		}
		owners[strings.TrimSuffix(fields[2], "/")] = pkg{fields[0], fields[1]}
	}
	return owners, nil
}

// dirs are the directories where the dynamic linker looks for libraries.
var dirs = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib", "usr/lib"}

// add copies a file and the libraries that it loads. The target of a link is copied under the name of the link.
func (c *closure) add(name string) error {
	if c.copied[name] {
		return nil
	}
	c.copied[name] = true
	file, err := c.resolve(name)
	if err != nil {
		return err
	}
	owner, known := c.owners[name]
	if !known {
		return fmt.Errorf("no package contains the file %s", name)
	}
	c.packages[owner] = true
	if err := c.copy(file, name); err != nil {
		return err
	}
	program, err := elf.Open(filepath.Join(c.from, file))
	if _, other := errors.AsType[*elf.FormatError](err); other || errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	defer program.Close()
	return c.addLoaded(name, program)
}

// addLoaded adds the libraries of a program or library, and its dynamic linker.
func (c *closure) addLoaded(name string, program *elf.File) error {
	if section := program.Section(".interp"); section != nil {
		linker, err := section.Data()
		if err != nil {
			return fmt.Errorf("cannot read the dynamic linker of %s: %w", name, err)
		}
		if err := c.add(strings.Trim(string(linker), "/\x00")); err != nil {
			return err
		}
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("cannot read the libraries of %s: %w", name, err)
	}
	for _, library := range libraries {
		at := slices.IndexFunc(dirs, func(dir string) bool {
			_, known := c.owners[path.Join(dir, library)]
			return known
		})
		if at < 0 {
			return fmt.Errorf("%s loads %s, but no package contains it", name, library)
		}
		if err := c.add(path.Join(dirs[at], library)); err != nil {
			return err
		}
	}
	return nil
}

// maxLinks is the maximum number of symbolic links in the resolution of a path.
const maxLinks = 20

// resolve follows symbolic links, whose targets are in the same root.
func (c *closure) resolve(name string) (string, error) {
	at := name
	for range maxLinks {
		info, err := os.Lstat(filepath.Join(c.from, at))
		if err != nil {
			return "", err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			return at, nil
		}
		to, err := os.Readlink(filepath.Join(c.from, at))
		if err != nil {
			return "", err
		}
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(at), to)
		}
		at = strings.TrimPrefix(path.Clean(to), "/")
	}
	return "", fmt.Errorf("%s has more than %d symbolic links", name, maxLinks)
}

func (c *closure) copy(from, to string) error {
	content, err := os.ReadFile(filepath.Join(c.from, from))
	if err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(c.from, from))
	if err != nil {
		return err
	}
	target := filepath.Join(c.to, to)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	// Only the owner can write, and setuid and setgid bits are removed.
	return os.WriteFile(target, content, info.Mode().Perm()&0o755)
}

// copyright copies the copyright file of a package. Some packages share the directory of another package.
func (c *closure) copyright(p pkg) error {
	dir, err := c.resolve(path.Join("usr/share/doc", p.name))
	if err != nil {
		return fmt.Errorf("cannot find the copyright file of package %s: %w", p.name, err)
	}
	file, err := c.resolve(path.Join(dir, "copyright"))
	if err != nil {
		return fmt.Errorf("cannot find the copyright file of package %s: %w", p.name, err)
	}
	return c.copy(file, path.Join("usr/share/doc", p.name, "copyright"))
}

// sorted returns the packages, sorted by name.
func (c *closure) sorted() []pkg {
	return slices.SortedFunc(maps.Keys(c.packages), func(a, b pkg) int { return cmp.Compare(a.name, b.name) })
}
