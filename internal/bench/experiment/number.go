package experiment

import (
	"fmt"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// column splits a heading such as "p99, ms" into name and unit.
func column(name string) Column {
	if i := strings.LastIndex(name, ", "); i >= 0 {
		return Column{Name: name[:i], Unit: name[i+2:]}
	}
	return Column{Name: name}
}

func (c Column) String() string {
	if c.Unit == "" {
		return c.Name
	}
	return c.Name + ", " + c.Unit
}

// text formats the value of a cell.
func text(cell any) string {
	switch value := cell.(type) {
	case float64:
		return number.Text(value)
	case int:
		return number.Text(float64(value))
	case int64:
		return number.Text(float64(value))
	}
	return fmt.Sprint(cell)
}
