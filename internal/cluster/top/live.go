package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Live calls nextFrame at every interval and draws the frame, until the user presses q, Esc or Ctrl-C, or
// ctx is done.
func Live(ctx context.Context, in io.Reader, out io.Writer, interval time.Duration, nextFrame func() Frame) error {
	program := tea.NewProgram(model{nextFrame: nextFrame, interval: interval, current: nextFrame()},
		tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	_, err := program.Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // ctx was cancelled, for example by SIGINT, which is not an error.
	}
	return err
}

// model implements [tea.Model].
type model struct {
	nextFrame     func() Frame
	interval      time.Duration
	current       Frame
	width, height int // size of the terminal in characters; 0 until it is known
}

// tick is the message that the interval has passed.
type tick struct{}

func (m model) scheduleTick() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// Init implements [tea.Model]. It schedules the first tick.
func (m model) Init() tea.Cmd { return m.scheduleTick() }

// Update implements [tea.Model]. It handles resizes, keys and ticks.
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
		m.current = m.nextFrame()
		return m, m.scheduleTick()
	}
	return m, nil
}

// View implements [tea.Model]. It renders the current frame on the alternate screen.
func (m model) View() tea.View {
	view := tea.NewView("")
	if m.width > 0 {
		view.SetContent(Render(m.current, m.width, m.height))
	}
	view.AltScreen = true
	return view
}
