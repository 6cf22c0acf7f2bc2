// Package cloudconfig decodes user data in cloud-init's format #cloud-config.
//
// It supports what Cluster API's bootstrap provider for kubeadm writes: files, commands and templates. Fields
// that the guest does not support are ignored and reported, or are an error if the node would not match the
// user data without them.
package cloudconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const header = "#cloud-config"

// ErrForeign means that the user data has another format.
var ErrForeign = errors.New("the user data is not a " + header)

// Error is an error in a #cloud-config. Of the content, it only contains names of fields: the rest may hold
// secrets.
type Error struct {
	// Where is a field, such as write_files[2].encoding, or a line.
	Where string
	// Problem is a message for users.
	Problem string
}

func (e *Error) Error() string { return header + ": " + e.Where + ": " + e.Problem }

// Instance has the values of template variables.
type Instance struct {
	// ID is the instance ID in the seed's meta-data.
	ID string
	// Name is the host name in the seed's meta-data.
	Name string
}

// Config is a decoded #cloud-config.
type Config struct {
	// Files are written in this order, before the commands.
	Files []File
	// BootCommands is a shell script that runs at each boot, before the files are written. It may be empty.
	BootCommands string
	// Commands is a shell script that runs at the first boot. It may be empty.
	Commands string
	// Ignored lists what the guest does not do, and why, sorted. The node is the same without it.
	Ignored []string
}

// Is reports whether the user data is a #cloud-config, or a template of one. Like cloud-init, it accepts data that is
// compressed with gzip, blanks and empty lines before the header, any case, and any text after it.
func Is(content []byte) bool {
	_, content = cutTemplate(plain(content))
	return hasHeader(content)
}

// others are formats of cloud-init whose headers begin with the header of this one.
var others = []string{header + "-archive", header + "-jsonp"}

func hasHeader(content []byte) bool {
	line, _, _ := strings.Cut(strings.ToLower(string(trimStart(content))), "\n")
	return strings.HasPrefix(line, header) &&
		!slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(line, other) })
}

// trimStart returns the content without the blanks and empty lines at its start.
func trimStart(content []byte) []byte { return bytes.TrimLeft(content, " \t\r\n\v\f") }

// plain returns the content of data that is compressed with gzip, and other data unchanged.
func plain(content []byte) []byte {
	if uncompressed, err := uncompress(content); err == nil {
		return uncompressed
	}
	return content
}

// Parse decodes user data. It returns ErrForeign, or an *Error for the first error.
func Parse(content []byte, instance Instance) (Config, error) {
	content = plain(content)
	template, rest := cutTemplate(content)
	if !hasHeader(rest) {
		return Config{}, ErrForeign
	}
	if template {
		before := content[:len(content)-len(rest)]
		rendered, err := render(string(rest), instance, 1+bytes.Count(before, []byte("\n")))
		if err != nil {
			return Config{}, err
		}
		rest = []byte(rendered)
	}
	var fields map[string]json.RawMessage
	if err := yaml.Unmarshal(rest, &fields); err != nil {
		return Config{}, &Error{lineOf(err), "is not a YAML mapping"}
	}
	return decode(fields, instance)
}

var yamlLine = regexp.MustCompile(`\bline ([0-9]+)\b`)

// lineOf returns the location that an error of the YAML decoder names, without its text.
func lineOf(err error) string {
	if match := yamlLine.FindStringSubmatch(err.Error()); match != nil {
		return "line " + match[1]
	}
	return "document"
}

func decode(fields map[string]json.RawMessage, instance Instance) (config Config, err error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		content := fields[name]
		if isEmpty(content) || isName(name, content, instance) {
			continue
		}
		if problem, ok := refused[name]; ok {
			return Config{}, &Error{name, problem}
		}
		if _, ok := decoded[name]; !ok && !slices.Contains(silent, name) {
			config.Ignored = append(config.Ignored, name+" "+ignoredBecause(name))
		}
	}
	for _, name := range []string{"write_files", "bootcmd", "runcmd"} {
		if err := decoded[name](&config, fields[name]); err != nil {
			return Config{}, err
		}
	}
	return config, nil
}

// isName reports whether a field sets the name that the machine already has.
func isName(field string, content json.RawMessage, instance Instance) bool {
	var name string
	return field == "hostname" && json.Unmarshal(content, &name) == nil && name == instance.Name
}

// isEmpty reports whether a field has no content.
func isEmpty(content json.RawMessage) bool {
	return slices.Contains([]string{"", "null", "false", "[]", "{}", `""`}, string(content))
}

// decoded are the fields that the guest supports.
var decoded = map[string]func(*Config, json.RawMessage) error{
	"write_files": decodeFiles,
	"bootcmd": func(c *Config, content json.RawMessage) (err error) {
		c.BootCommands, err = script("bootcmd", content)
		return err
	},
	"runcmd": func(c *Config, content json.RawMessage) (err error) {
		c.Commands, err = script("runcmd", content)
		return err
	},
}

// refused are fields without which the node would be different.
var refused = map[string]string{
	"disk_setup":     "the guest does not create partitions",
	"fs_setup":       "the guest does not create file systems",
	"mounts":         "the guest does not mount disks",
	"swap":           "the guest has no swap",
	"packages":       "the guest does not install packages",
	"snap":           "the guest does not install packages",
	"ca_certs":       "the guest only trusts Debian's certificate authorities",
	"ca-certs":       "the guest only trusts Debian's certificate authorities",
	"power_state":    "the guest does not power off or restart by itself",
	"chef":           "the guest has no such program",
	"puppet":         "the guest has no such program",
	"salt_minion":    "the guest has no such program",
	"ansible":        "the guest has no such program",
	"wireguard":      "the guest has no such program",
	"hostname":       "the machine's name is its host name",
	"fqdn":           "the machine's name is its host name",
	"autoinstall":    "the guest is not an installer",
	"device_aliases": "the guest does not create partitions",
}

// silent are fields that the guest always fulfills, or that only configure cloud-init.
var silent = []string{
	"growpart", "resize_rootfs", "preserve_hostname", "manage_etc_hosts", "final_message", "output", "debug", "datasource",
	"datasource_list", "merge_how", "merge_type", "disable_root", "package_update", "package_upgrade", "manage_resolv_conf",
}

// ignoredBecause returns why a field is ignored.
func ignoredBecause(name string) string {
	switch name {
	case "users", "groups", "user", "password", "chpasswd", "ssh_authorized_keys", "ssh_pwauth", "ssh_keys", "ssh_deletekeys", "ssh_import_id":
		return "ignored: users cannot log in to the guest"
	case "ntp":
		return "ignored: the guest's clock follows its host's"
	}
	return "ignored: not supported by the guest"
}

// script creates one shell script from commands, each a string or a list of arguments.
func script(field string, content json.RawMessage) (string, error) {
	if isEmpty(content) {
		return "", nil
	}
	var commands []json.RawMessage
	if err := json.Unmarshal(content, &commands); err != nil {
		return "", &Error{field, "is not a list"}
	}
	var lines strings.Builder
	for i, command := range commands {
		var line string
		var arguments []json.RawMessage
		switch {
		case string(command) == "null":
			continue
		case json.Unmarshal(command, &line) == nil:
		case json.Unmarshal(command, &arguments) == nil:
			texts, ok := scalars(arguments)
			if !ok {
				return "", &Error{fmt.Sprintf("%s[%d]", field, i), "has an argument that is a list or a mapping"}
			}
			line = quoted(texts)
		default:
			return "", &Error{fmt.Sprintf("%s[%d]", field, i), "is neither a string nor a list of arguments"}
		}
		lines.WriteString(line + "\n")
	}
	return lines.String(), nil
}

// scalars returns arguments as the texts that Python, and therefore cloud-init, makes of them. It returns false for
// an argument that is not a scalar.
func scalars(arguments []json.RawMessage) (texts []string, ok bool) {
	for _, argument := range arguments {
		var text string
		switch literal := string(argument); {
		case json.Unmarshal(argument, &text) == nil && literal != "null":
		case literal == "true":
			text = "True"
		case literal == "false":
			text = "False"
		case literal == "null":
			text = "None"
		case strings.HasPrefix(literal, "[") || strings.HasPrefix(literal, "{"):
			return nil, false
		default: // a number
			text = literal
		}
		texts = append(texts, text)
	}
	return texts, true
}

func quoted(arguments []string) string {
	var all []string
	for _, argument := range arguments {
		all = append(all, "'"+strings.ReplaceAll(argument, "'", `'\''`)+"'")
	}
	return strings.Join(all, " ")
}
