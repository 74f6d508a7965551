/** Where the program is. CommonJS in both builds: it looks for a package from where it stands. */

/** The package that has the program for this platform, an optional dependency of this one. */
export function platformPackage(): string {
  return `@atoll-sandbox/${process.platform}-${process.arch}`;
}

/** The program that was installed with this package, if there is one for this platform. */
export function bundled(): string | undefined {
  try {
    return require.resolve(`${platformPackage()}/bin/atoll`);
  } catch {
    return undefined;
  }
}
