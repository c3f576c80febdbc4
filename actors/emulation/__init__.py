"""The terminal emulators behind `actors.Screen`."""
