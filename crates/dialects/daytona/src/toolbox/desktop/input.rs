//! Mouse and keyboard.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{coordinate, desktop, keys, number, run};
use crate::error::{Failure, Result};
use crate::request::Json;
use crate::who::Inside;

/// Clicks of one call.
const CLICKS: std::ops::RangeInclusive<i64> = 1..=10;
/// Pause between two clicks, milliseconds.
const CLICK_PAUSE_MS: &str = "50";
/// Steps of the wheel in one call.
const STEPS_MAX_COUNT: i64 = 1000;
/// Longest pause between two characters, milliseconds.
const DELAY_MAX_MS: i64 = 10_000;
/// Text of one call, bytes.
const TEXT_MAX_BYTES: usize = 64 << 10;

/// What a client asks of the mouse.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Mouse {
    x: Option<i64>,
    y: Option<i64>,
    start_x: Option<i64>,
    start_y: Option<i64>,
    end_x: Option<i64>,
    end_y: Option<i64>,
    button: Option<String>,
    clicks: Option<i64>,
    double: Option<bool>,
    direction: Option<String>,
    amount: Option<i64>,
    modifiers: Option<Vec<String>>,
}

/// What a client asks of the keyboard.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Keyboard {
    text: Option<String>,
    delay: Option<i64>,
    key: Option<String>,
    keys: Option<String>,
    modifiers: Option<Vec<String>>,
}

/// A chain of xdotool's commands.
#[derive(Debug, Default)]
struct Chain(Vec<String>);

impl Chain {
    fn then(mut self, words: &[&str]) -> Self {
        self.0.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    /// Does the same while these keys are held.
    fn holding(mut self, modifiers: Option<&Vec<String>>) -> Result<Self> {
        let (mut before, mut after) = (Self::default(), Self::default());
        for name in modifiers.into_iter().flatten() {
            let key = keys::modifier(name)?;
            before = before.then(&["keydown", key]);
            after = Self::default().then(&["keyup", key]).and(after);
        }
        before.0.append(&mut self.0);
        Ok(before.and(after))
    }

    fn and(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }

    /// Runs the chain, and tells where the mouse is then.
    async fn run(self, inside: &Inside) -> Result<Json<Value>> {
        let mut words = vec!["xdotool"];
        words.extend(self.0.iter().map(String::as_str));
        words.extend(["getmouselocation", "--shell"]);
        let told = desktop(inside, &words).await?;
        Ok(Json(json!({"x": number(&told, "X"), "y": number(&told, "Y")})))
    }
}

impl Mouse {
    fn button(&self) -> Result<&'static str> {
        keys::button(self.button.as_deref())
    }

    /// Moves the mouse to the place in the request.
    fn moved(&self) -> Result<Chain> {
        let (x, y) = (coordinate("x", self.x)?, coordinate("y", self.y)?);
        Ok(Chain::default().then(&["mousemove", &x, &y]))
    }

    /// The same, if the request has a place.
    fn moved_if_said(&self) -> Result<Chain> {
        if self.x.is_none() && self.y.is_none() { Ok(Chain::default()) } else { self.moved() }
    }
}

/// Where the mouse is.
pub(super) async fn position(inside: Inside) -> Result<Json<Value>> {
    Chain::default().run(&inside).await
}

pub(super) async fn move_to(inside: Inside, Json(asked): Json<Mouse>) -> Result<Json<Value>> {
    asked.moved()?.run(&inside).await
}

pub(super) async fn click(inside: Inside, Json(asked): Json<Mouse>) -> Result<Json<Value>> {
    let clicks = asked.clicks.unwrap_or(if asked.double == Some(true) { 2 } else { 1 });
    if !CLICKS.contains(&clicks) {
        return Err(Failure::bad_daemon("clicks: must be a number from 1 to 10"));
    }
    let (clicks, button) = (clicks.to_string(), asked.button()?);
    let click = ["click", "--repeat", &clicks, "--delay", CLICK_PAUSE_MS, button];
    asked.moved()?.then(&click).holding(asked.modifiers.as_ref())?.run(&inside).await
}

pub(super) async fn drag(inside: Inside, Json(asked): Json<Mouse>) -> Result<Json<Value>> {
    let (from_x, from_y) = (coordinate("startX", asked.start_x)?, coordinate("startY", asked.start_y)?);
    let (to_x, to_y) = (coordinate("endX", asked.end_x)?, coordinate("endY", asked.end_y)?);
    let button = asked.button()?;
    let chain = Chain::default().then(&["mousemove", &from_x, &from_y, "mousedown", button]);
    let chain = chain.then(&["mousemove", &to_x, &to_y, "mouseup", button]);
    chain.holding(asked.modifiers.as_ref())?.run(&inside).await
}

pub(super) async fn scroll(inside: Inside, Json(asked): Json<Mouse>) -> Result<Json<Value>> {
    let button = match asked.direction.as_deref() {
        Some("up") => "4",
        Some("down") => "5",
        Some("left") => "6",
        Some("right") => "7",
        _ => return Err(Failure::bad_daemon("direction: must be up, down, left or right")),
    };
    let amount = asked.amount.unwrap_or(1);
    if !(0..=STEPS_MAX_COUNT).contains(&amount) {
        return Err(Failure::bad_daemon(format!("amount: must be a number from 0 to {STEPS_MAX_COUNT}")));
    }
    let (steps, mut chain) = (amount.to_string(), asked.moved()?);
    if amount > 0 {
        chain = chain.then(&["click", "--repeat", &steps, "--delay", "10", button]);
    }
    chain.holding(asked.modifiers.as_ref())?.run(&inside).await?;
    Ok(Json(json!({"success": true})))
}

pub(super) async fn button_down(inside: Inside, Json(asked): Json<Mouse>) -> Result<Json<Value>> {
    asked.moved_if_said()?.then(&["mousedown", asked.button()?]).run(&inside).await
}

pub(super) async fn button_up(inside: Inside, Json(asked): Json<Mouse>) -> Result<Json<Value>> {
    asked.moved_if_said()?.then(&["mouseup", asked.button()?]).run(&inside).await
}

/// The text is the input of a program, never an argument.
pub(super) async fn type_text(inside: Inside, Json(asked): Json<Keyboard>) -> Result<Json<Value>> {
    let text = asked.text.unwrap_or_default();
    let delay = asked.delay.unwrap_or_default();
    if text.len() > TEXT_MAX_BYTES {
        return Err(Failure::bad_daemon(format!("text: at most {TEXT_MAX_BYTES} bytes")));
    }
    if !(0..=DELAY_MAX_MS).contains(&delay) {
        return Err(Failure::bad_daemon(format!("delay: must be a number from 0 to {DELAY_MAX_MS}")));
    }
    let words = ["xdotool", "type", "--delay", &delay.to_string(), "--file", "-"];
    run(&inside, &words, Some(Bytes::from(text))).await?;
    Ok(Json(json!({})))
}

async fn keyboard(inside: &Inside, chain: Chain) -> Result<Json<Value>> {
    chain.run(inside).await?;
    Ok(Json(json!({})))
}

pub(super) async fn press(inside: Inside, Json(asked): Json<Keyboard>) -> Result<Json<Value>> {
    let key = keys::key(asked.key.as_deref().unwrap_or_default())?;
    let chain = Chain::default().then(&["key", &key]).holding(asked.modifiers.as_ref())?;
    keyboard(&inside, chain).await
}

pub(super) async fn hotkey(inside: Inside, Json(asked): Json<Keyboard>) -> Result<Json<Value>> {
    let keys = keys::together(asked.keys.as_deref().unwrap_or_default())?;
    keyboard(&inside, Chain::default().then(&["key", &keys])).await
}

pub(super) async fn key_down(inside: Inside, Json(asked): Json<Keyboard>) -> Result<Json<Value>> {
    let key = keys::key(asked.key.as_deref().unwrap_or_default())?;
    keyboard(&inside, Chain::default().then(&["keydown", &key])).await
}

pub(super) async fn key_up(inside: Inside, Json(asked): Json<Keyboard>) -> Result<Json<Value>> {
    let key = keys::key(asked.key.as_deref().unwrap_or_default())?;
    keyboard(&inside, Chain::default().then(&["keyup", &key])).await
}
