//! Names of keys and buttons, as X has them.

use crate::error::{Failure, Result};

/// Keys that are not named after the character that they write. The clients send small letters, and several names for
/// some keys.
const KEYS: [(&[&str], &str); 39] = [
    (&["enter", "return"], "Return"),
    (&["escape", "esc"], "Escape"),
    (&["tab"], "Tab"),
    (&["space"], "space"),
    (&["backspace"], "BackSpace"),
    (&["delete", "del"], "Delete"),
    (&["insert"], "Insert"),
    (&["home"], "Home"),
    (&["end"], "End"),
    (&["pageup", "page_up"], "Prior"),
    (&["pagedown", "page_down"], "Next"),
    (&["up", "arrowup"], "Up"),
    (&["down", "arrowdown"], "Down"),
    (&["left", "arrowleft"], "Left"),
    (&["right", "arrowright"], "Right"),
    (&["capslock", "caps_lock"], "Caps_Lock"),
    (&["numlock", "num_lock"], "Num_Lock"),
    (&["printscreen", "print"], "Print"),
    (&["pause"], "Pause"),
    (&["menu"], "Menu"),
    (&["-", "minus"], "minus"),
    (&["=", "equal"], "equal"),
    (&["plus"], "plus"),
    (&["[", "bracketleft"], "bracketleft"),
    (&["]", "bracketright"], "bracketright"),
    (&["\\", "backslash"], "backslash"),
    (&[";", "semicolon"], "semicolon"),
    (&["'", "apostrophe"], "apostrophe"),
    (&["`", "grave"], "grave"),
    (&[",", "comma"], "comma"),
    (&[".", "period"], "period"),
    (&["/", "slash"], "slash"),
    (&["num_plus"], "KP_Add"),
    (&["num_minus"], "KP_Subtract"),
    (&["num_asterisk"], "KP_Multiply"),
    (&["num_slash"], "KP_Divide"),
    (&["num_decimal"], "KP_Decimal"),
    (&["num_enter"], "KP_Enter"),
    (&["num_equal"], "KP_Equal"),
];
const MODIFIERS: [(&[&str], &str); 4] = [
    (&["ctrl", "control"], "ctrl"),
    (&["alt", "option"], "alt"),
    (&["shift"], "shift"),
    (&["cmd", "command", "meta", "win", "super"], "super"),
];
const BUTTONS: [(&str, &str); 3] = [("left", "1"), ("middle", "2"), ("right", "3")];
/// Function keys.
const FUNCTIONS: std::ops::RangeInclusive<u8> = 1..=24;

fn of(table: &[(&[&str], &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(names, _)| names.contains(&name)).map(|(_, key)| *key)
}

fn unknown(what: &str, name: &str) -> Failure {
    Failure::bad_daemon(format!("{what}: there is no '{}'", atoll_core::error::shorten(name)))
}

/// A key that is held while others are pressed.
///
/// # Errors
/// 400.
pub(super) fn modifier(name: &str) -> Result<&'static str> {
    of(&MODIFIERS, &name.to_ascii_lowercase()).ok_or_else(|| unknown("modifiers", name))
}

/// A key, a modifier too.
///
/// # Errors
/// 400.
pub(super) fn key(name: &str) -> Result<String> {
    let small = name.to_ascii_lowercase();
    if let Some(key) = of(&KEYS, &small).or_else(|| of(&MODIFIERS, &small)) {
        return Ok(key.to_owned());
    }
    let one = |text: &str| text.len() == 1 && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if one(name) {
        return Ok(name.to_owned());
    }
    if let Some(digit) = small.strip_prefix("num_").filter(|text| one(text) && *text < ":") {
        return Ok(format!("KP_{digit}"));
    }
    let function = small.strip_prefix('f').and_then(|number| number.parse().ok());
    match function.filter(|number| FUNCTIONS.contains(number)) {
        Some(number) => Ok(format!("F{number}")),
        None => Err(unknown("key", name)),
    }
}

/// Keys that are pressed together, as in `ctrl+c`.
///
/// # Errors
/// 400.
pub(super) fn together(names: &str) -> Result<String> {
    let keys: Vec<String> = names.split('+').map(|name| key(name.trim())).collect::<Result<_>>()?;
    Ok(keys.join("+"))
}

/// A button of the mouse; the left one when the client names none.
///
/// # Errors
/// 400.
pub(super) fn button(name: Option<&str>) -> Result<&'static str> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or("left");
    let found = BUTTONS.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number).ok_or_else(|| unknown("button", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for (name, told) in [
            ("enter", "Return"),
            ("Return", "Return"),
            ("ESCAPE", "Escape"),
            ("a", "a"),
            ("A", "A"),
            ("7", "7"),
            ("f1", "F1"),
            ("F24", "F24"),
            ("-", "minus"),
            ("num_plus", "KP_Add"),
            ("num_7", "KP_7"),
            ("ctrl", "ctrl"),
        ] {
            assert_eq!(key(name).unwrap(), told, "{name}");
        }
        for bad in ["", "f0", "f25", "ab", "--help", "+", "é", "num_x", "num_", "$(id)", "a;b"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_pressed_together() {
        assert_eq!(together("ctrl+c").unwrap(), "ctrl+c");
        assert_eq!(together("Cmd + Shift + Enter").unwrap(), "super+shift+Return");
        assert!(together("ctrl++").is_err() && together("").is_err());
        assert!(modifier("a").is_err() && modifier("Option").is_ok());
        assert_eq!(button(None).unwrap(), "1");
        assert!(button(Some("4")).is_err());
    }
}
