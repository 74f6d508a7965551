/** The version of this package. It is the same as in `package.json`. */
export const VERSION = "0.1.0";
