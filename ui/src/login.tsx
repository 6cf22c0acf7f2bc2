// The views for users who must log in, if many users share the page.

import { useState } from "preact/hooks";
import { LoginNeeded, post } from "./api";
import { store } from "./store";

// The form for a bearer token.
export function Login({ reason }: { reason: string }) {
  const [token, setToken] = useState("");
  const [namespace, setNamespace] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const logIn = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await post("login", { token, namespace: namespace.trim() });
      setToken("");
      store.begin();
    } catch (error) {
      setProblem((error as Error).message);
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <form onSubmit={logIn}>
        <h1>Millwright</h1>
        <p role="status">{reason}</p>
        <label>
          Bearer token
          <input type="password" autocomplete="off" spellcheck={false} autofocus required value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <label>
          Namespace
          <input type="text" autocomplete="off" spellcheck={false} placeholder="All" value={namespace} onInput={(event) => setNamespace(event.currentTarget.value)} />
        </label>
        <p class="quiet">
          The page can do what the token permits. For a service account, <code>kubectl create token NAME -n NAMESPACE</code> creates one.
        </p>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <button type="submit" class="run" disabled={busy}>
          Log in
        </button>
      </form>
    </main>
  );
}

// LogInAgain is shown to users of a proxy that logs users in. Reloading the page leads to the login of the proxy.
export function LogInAgain({ reason }: { reason: string }) {
  const reload = (event: SubmitEvent) => {
    event.preventDefault();
    location.reload();
  };
  return (
    <main class="login">
      <form onSubmit={reload}>
        <h1>Millwright</h1>
        <p role="status">{reason}</p>
        <button type="submit" class="run">
          Log in again
        </button>
      </form>
    </main>
  );
}

export function LogOut() {
  const [problem, setProblem] = useState("");
  const logOut = () =>
    post("logout", {}).then(
      () => store.askLogin("You have logged out."),
      (error: Error) => (error instanceof LoginNeeded ? store.askLogin(error.message) : setProblem(error.message)),
    );
  return (
    <button type="button" title={problem} onClick={logOut}>
      {problem ? "Retry logout" : "Log out"}
    </button>
  );
}
