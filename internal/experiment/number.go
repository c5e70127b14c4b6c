package experiment

import (
	"fmt"
	"strings"
)

// column splits a name from its unit.
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

// Number with as many digits as it is worth: three, or all before the point.
func Number(value float64) string {
	switch size := max(value, -value); {
	case size >= 1e6:
		return fmt.Sprintf("%.2fM", value/1e6)
	case size >= 1e5:
		return fmt.Sprintf("%.0fk", value/1e3)
	case size >= 100 || value == float64(int64(value)):
		return fmt.Sprintf("%.0f", value)
	case size >= 10:
		return fmt.Sprintf("%.1f", value)
	case size >= 0.1:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.2g", value)
	}
}

// text of a cell.
func text(cell any) string {
	if number, ok := cell.(float64); ok {
		return Number(number)
	}
	return fmt.Sprint(cell)
}
