atoll create --name my-box
