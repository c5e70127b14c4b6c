package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Live draws frames anew, until somebody presses q or ctx ends.
func Live(ctx context.Context, in io.Reader, out io.Writer, interval time.Duration, frame func() Frame) error {
	program := tea.NewProgram(model{frame: frame, interval: interval, now: frame()},
		tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	_, err := program.Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // Who presses Ctrl-C has seen enough.
	}
	return err
}

// model is what bubbletea drives.
type model struct {
	frame         func() Frame
	interval      time.Duration
	now           Frame
	width, height int
}

type tick struct{}

func (m model) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// Init begins to draw anew.
func (m model) Init() tea.Cmd { return m.wait() }

// Update takes what has happened.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		}
	case tick:
		m.now = m.frame()
		return m, m.wait()
	}
	return m, nil
}

// View is the whole terminal.
func (m model) View() tea.View {
	view := tea.NewView("")
	if m.width > 0 {
		view.SetContent(Render(m.now, m.width, m.height))
	}
	view.AltScreen = true
	return view
}
