package component

import (
	"strconv"
	"strings"
)

// args is a command line of --key=value flags.
type args []string

func (a *args) add(key, value string)          { *a = append(*a, "--"+key+"="+value) }
func (a *args) addInt(key string, value int)   { a.add(key, strconv.Itoa(value)) }
func (a *args) addBool(key string, value bool) { a.add(key, strconv.FormatBool(value)) }

// addUserArgs appends key=value flags of the user, such as those of --apiserver-arg. They come last, so
// that they override the flags that k1m sets.
func (a *args) addUserArgs(pairs []string) {
	for _, pair := range pairs {
		*a = append(*a, "--"+strings.TrimLeft(pair, "-"))
	}
}
