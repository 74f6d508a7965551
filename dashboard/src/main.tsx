import { render } from "preact";
import "./style.css";
import { signIn } from "./api";
import { App, SignedOut } from "./app";
import { watch } from "./live";
import { listen } from "./router";
import { restoreTheme } from "./theme";

const root = document.getElementById("app") as HTMLElement;
restoreTheme();
signIn().then(
  () => {
    listen();
    watch();
    render(<App />, root);
  },
  (error: Error) => render(<SignedOut why={error.message} />, root),
);
