//! The screen: pictures of it, its size, its windows.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{coordinate, desktop, number};
use crate::error::{Failure, Result, Source};
use crate::request::{Json, Query};
use crate::who::Inside;

/// Quality of a picture when the client gives none.
const QUALITY: i64 = 85;

/// The picture that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Picture {
    x: Option<i64>,
    y: Option<i64>,
    width: Option<i64>,
    height: Option<i64>,
    show_cursor: Option<bool>,
    format: Option<String>,
    quality: Option<i64>,
    scale: Option<f64>,
}

impl Picture {
    /// The part of the screen.
    fn part(&self) -> Result<String> {
        let [x, y] = [coordinate("x", self.x)?, coordinate("y", self.y)?];
        let [width, height] = [coordinate("width", self.width)?, coordinate("height", self.height)?];
        if width == "0" || height == "0" {
            return Err(Failure::bad_daemon("width, height: must be more than 0"));
        }
        Ok(format!("{x},{y},{width},{height}"))
    }

    /// The size in percent.
    fn percent(&self) -> Result<u8> {
        let percent = (self.scale.unwrap_or(1.0) * 100.0).round();
        let bad = || Failure::bad_daemon("scale: must be a number from 0.01 to 1");
        let whole = (1..=100_u8).find(|whole| (f64::from(*whole) - percent).abs() < f64::EPSILON);
        whole.ok_or_else(bad)
    }

    fn suffix(&self) -> Result<&'static str> {
        match self.format.as_deref().filter(|format| !format.is_empty()) {
            None | Some("png") => Ok("png"),
            Some("jpeg" | "jpg") => Ok("jpg"),
            Some(_) => Err(Failure::bad_daemon("format: must be png or jpeg")),
        }
    }

    async fn take(&self, inside: &Inside, part: Option<String>) -> Result<Json<Value>> {
        let quality = self.quality.unwrap_or(QUALITY);
        if !(0..=100).contains(&quality) {
            return Err(Failure::bad_daemon("quality: must be a number from 0 to 100"));
        }
        let (quality, percent) = (quality.max(1).to_string(), self.percent()?.to_string());
        let mut words = vec!["screenshot", self.suffix()?, &quality, &percent];
        if self.show_cursor == Some(true) {
            words.push("-p");
        }
        if let Some(part) = &part {
            words.extend(["-a", part]);
        }
        let told = desktop(inside, &words).await?;
        let picture = told.lines().last().unwrap_or_default();
        let is_base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
        if picture.is_empty() || !picture.bytes().all(is_base64) || told.starts_with('[') {
            return Err(Failure::internal("the picture is none, or too large").from(Source::Daemon));
        }
        let padding = picture.bytes().rev().take_while(|b| *b == b'=').count();
        Ok(Json(json!({
            "screenshot": picture,
            "sizeBytes": (picture.len() / 4 * 3).saturating_sub(padding),
            "cursorPosition": {"x": number(&told, "X"), "y": number(&told, "Y")},
        })))
    }
}

pub(super) async fn whole(inside: Inside, Query(asked): Query<Picture>) -> Result<Json<Value>> {
    Picture { show_cursor: asked.show_cursor, ..Picture::default() }.take(&inside, None).await
}

pub(super) async fn region(inside: Inside, Query(asked): Query<Picture>) -> Result<Json<Value>> {
    let part = asked.part()?;
    Picture { show_cursor: asked.show_cursor, ..Picture::default() }.take(&inside, Some(part)).await
}

pub(super) async fn compressed(inside: Inside, Query(asked): Query<Picture>) -> Result<Json<Value>> {
    asked.take(&inside, None).await
}

pub(super) async fn compressed_region(inside: Inside, Query(asked): Query<Picture>) -> Result<Json<Value>> {
    let part = asked.part()?;
    asked.take(&inside, Some(part)).await
}

/// There is one display.
pub(super) async fn displays(inside: Inside) -> Result<Json<Value>> {
    let told = desktop(&inside, &["xdotool", "getdisplaygeometry", "--shell"]).await?;
    let (width, height) = (number(&told, "WIDTH"), number(&told, "HEIGHT"));
    let display = json!({"id": 0, "x": 0, "y": 0, "width": width, "height": height, "isActive": true});
    Ok(Json(json!({"displays": [display]})))
}

/// A window in the script's form: number, place, size, whether it has the keyboard, title.
fn window(line: &str) -> Option<Value> {
    let mut words = line.splitn(7, ' ');
    let mut next = || words.next()?.parse::<i64>().ok();
    let (id, x, y, width, height, active) = (next()?, next()?, next()?, next()?, next()?, next()?);
    let title = words.next().unwrap_or_default().trim_end();
    Some(json!({
        "id": id, "title": title, "x": x, "y": y, "width": width, "height": height, "isActive": active == 1,
    }))
}

pub(super) async fn windows(inside: Inside) -> Result<Json<Value>> {
    let told = desktop(&inside, &["windows"]).await?;
    Ok(Json(json!({"windows": told.lines().filter_map(window).collect::<Vec<_>>()})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read() {
        let told = window("7 1 -2 30 40 1 a title 9 ").unwrap();
        assert_eq!((&told["id"], &told["y"], &told["isActive"]), (&7.into(), &(-2).into(), &true.into()));
        assert_eq!(told["title"], "a title 9");
        assert_eq!(window("7 1 2 30 40 0 ").unwrap()["title"], "");
        assert!(window("7 1 2 30 x 0 t").is_none() && window("").is_none());
    }

    #[test]
    fn what_is_asked_is_checked() {
        let of = |scale| Picture { scale: Some(scale), ..Picture::default() }.percent();
        assert_eq!((of(1.0).unwrap(), of(0.5).unwrap(), of(0.01).unwrap()), (100, 50, 1));
        for bad in [0.0, -1.0, 1.5, f64::NAN, f64::INFINITY] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let part = |x, width| Picture { x, y: Some(0), width, height: Some(1), ..Picture::default() }.part();
        assert_eq!(part(Some(3), Some(4)).unwrap(), "3,0,4,1");
        assert!(
            part(None, Some(4)).is_err()
                && part(Some(1), Some(0)).is_err()
                && part(Some(-1), Some(4)).is_err()
        );
    }
}
