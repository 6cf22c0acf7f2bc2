package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millwright-dev/millwright/guest/cloudconfig"
)

// tree is a file system to write to.
type tree struct {
	// root is the root directory, whose /etc/passwd and /etc/group define the owners.
	root string
	// chown changes the owners of a file.
	chown func(file *os.File, user, group int) error
}

// writeAll writes files. It stops at the first file that it cannot write.
func (t tree) writeAll(files []cloudconfig.File) error {
	for _, file := range files {
		if err := t.write(file); err != nil {
			return fmt.Errorf("writing %s: %w", file.Path, err)
		}
	}
	return nil
}

func (t tree) write(file cloudconfig.File) (err error) {
	user, err := t.id("passwd", file.User)
	if err != nil {
		return err
	}
	group, err := t.id("group", file.Group)
	if err != nil {
		return err
	}
	at := filepath.Join(t.root, file.Path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	how := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if file.Append {
		how = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	out, err := os.OpenFile(at, how, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// This must be before there is any content that others could read.
	if err := errors.Join(t.chown(out, user, group), out.Chmod(file.Mode)); err != nil {
		return err
	}
	_, err = out.Write(file.Content)
	return err
}

// errNoSuchOwner means that no user or group has a name.
var errNoSuchOwner = errors.New("the guest has no such owner")

// id returns the ID of a name, which may be a number itself. An empty name means root.
func (t tree) id(list, name string) (int, error) {
	if name == "" || name == "root" {
		return 0, nil
	}
	if id, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(id), nil
	}
	content, err := os.ReadFile(filepath.Join(t.root, "etc", list))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(content), "\n") {
		if fields := strings.Split(line, ":"); len(fields) > 2 && fields[0] == name {
			return strconv.Atoi(fields[2])
		}
	}
	return 0, fmt.Errorf("%w: %s", errNoSuchOwner, name)
}
