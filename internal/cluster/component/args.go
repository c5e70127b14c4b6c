package component

import (
	"strconv"
	"strings"
)

// args builds a command line of --key=value flags, in the order given.
type args []string

func (a *args) add(key, value string)          { *a = append(*a, "--"+key+"="+value) }
func (a *args) addInt(key string, value int)   { a.add(key, strconv.Itoa(value)) }
func (a *args) addBool(key string, value bool) { a.add(key, strconv.FormatBool(value)) }

// addUser appends what the user passes through; later flags win over ours.
func (a *args) addUser(pairs []string) {
	for _, pair := range pairs {
		*a = append(*a, "--"+strings.TrimLeft(pair, "-"))
	}
}
